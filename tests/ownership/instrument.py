#!/usr/bin/env python3
"""Makes a copy of structured-merge-diff note what its tests ask of it: see record.sh.

A function is renamed to NAME_, and one of its name is put before it, which calls it and records
what went in and what came out.
"""
import glob
import os
import re
import shutil
import sys

root = sys.argv[1]
os.makedirs(os.path.join(root, 'internal/record'), exist_ok=True)
here = os.path.dirname(os.path.abspath(__file__))
shutil.copy(os.path.join(here, 'record.go'), os.path.join(root, 'internal/record/record.go'))
imp='"sigs.k8s.io/structured-merge-diff/v6/internal/record"\n'
def edit(path, f):
    p=os.path.join(root,path); s=open(p).read(); n=f(s)
    assert n!=s,path
    open(p,'w').write(n)
def add_import(s, name='record'):
    return s.replace('import (\n','import (\n\t'+imp,1) if 'import (' in s else s.replace('\nimport ','\nimport '+imp+'\nimport ',1)
# a method is renamed, and one of its name records it
def wrap(path, sig, old, new, body):
    """sig: regex of the func line; renamed to <name>_"""
    def f(s):
        m=re.search(sig,s); assert m,(path,sig)
        line=m.group(0); inner=line.replace(old,new,1)
        return s.replace(line,body+'\n'+inner,1)
    edit(path,f)
F='fieldpath/set.go'
for n in ['Union','Intersection','Difference','RecursiveDifference']:
    wrap(F,r'func \(s \*Set\) %s\(s2 \*Set\) \*Set \{'%n,n+'(',n+'_(','''func (s *Set) %s(s2 *Set) *Set {
	rec := record.Enter()
	defer record.Leave()
	o := s.%s_(s2)
	if rec {
		record.Emit("%s", record.Case{"left": record.Raw(s.ToJSON()), "right": record.Raw(s2.ToJSON()), "out": record.Raw(o.ToJSON())})
	}
	return o
}
'''%(n,n,n))
wrap(F,r'func \(s \*Set\) Leaves\(\) \*Set \{','Leaves(','Leaves_(','''func (s *Set) Leaves() *Set {
	rec := record.Enter()
	defer record.Leave()
	o := s.Leaves_()
	if rec {
		record.Emit("Leaves", record.Case{"set": record.Raw(s.ToJSON()), "out": record.Raw(o.ToJSON())})
	}
	return o
}
''')
wrap(F,r'func \(s \*Set\) EnsureNamedFieldsAreMembers\(sc \*schema.Schema, tr schema.TypeRef\) \*Set \{','EnsureNamedFieldsAreMembers(','EnsureNamedFieldsAreMembers_(','''func (s *Set) EnsureNamedFieldsAreMembers(sc *schema.Schema, tr schema.TypeRef) *Set {
	rec := record.Enter()
	defer record.Leave()
	o := s.EnsureNamedFieldsAreMembers_(sc, tr)
	if rec {
		record.Emit("EnsureNamedFieldsAreMembers", record.Case{"schema": record.Schema(sc.Types), "type": record.YAML(tr), "set": record.Raw(s.ToJSON()), "out": record.Raw(o.ToJSON())})
	}
	return o
}
''')
wrap(F,r'func \(s \*Set\) Has\(p Path\) bool \{','Has(','Has_(','''func (s *Set) Has(p Path) bool {
	rec := record.Enter()
	defer record.Leave()
	o := s.Has_(p)
	if rec {
		record.Emit("Has", record.Case{"set": record.Raw(s.ToJSON()), "path": recordedPath(p), "out": o})
	}
	return o
}

func recordedPath(p Path) []string {
	keys := []string{}
	for _, pe := range p {
		k, err := SerializePathElement(pe)
		if err != nil {
			panic(err)
		}
		keys = append(keys, k)
	}
	return keys
}
''')
wrap(F,r'func \(s \*Set\) Equals\(s2 \*Set\) bool \{','Equals(','Equals_(','''func (s *Set) Equals(s2 *Set) bool {
	rec := record.Enter()
	defer record.Leave()
	o := s.Equals_(s2)
	if rec {
		record.Emit("Equals", record.Case{"left": record.Raw(s.ToJSON()), "right": record.Raw(s2.ToJSON()), "out": o})
	}
	return o
}
''')
wrap(F,r'func \(s \*Set\) Size\(\) int \{','Size(','Size_(','''func (s *Set) Size() int {
	rec := record.Enter()
	defer record.Leave()
	o := s.Size_()
	if rec {
		record.Emit("Size", record.Case{"set": record.Raw(s.ToJSON()), "out": o})
	}
	return o
}
''')
wrap(F,r'func \(s \*Set\) String\(\) string \{','String(','String_(','''func (s *Set) String() string {
	rec := record.Enter()
	defer record.Leave()
	o := s.String_()
	if rec {
		record.Emit("String", record.Case{"set": record.Raw(s.ToJSON()), "out": o})
	}
	return o
}
''')
edit(F,add_import)
wrap('fieldpath/path.go',r'func \(fp Path\) String\(\) string \{','String(','String_(','''func (fp Path) String() string {
	rec := record.Enter()
	defer record.Leave()
	o := fp.String_()
	if rec {
		record.Emit("Path", record.Case{"path": recordedPath(fp), "out": o})
	}
	return o
}
''')
edit('fieldpath/path.go',add_import)
wrap('fieldpath/element.go',r'func \(e PathElement\) Less\(rhs PathElement\) bool \{','Less(','Less_(','''func (e PathElement) Less(rhs PathElement) bool {
	rec := record.Enter()
	defer record.Leave()
	o := e.Less_(rhs)
	if rec {
		l, err := SerializePathElement(e)
		r, err2 := SerializePathElement(rhs)
		if err == nil && err2 == nil {
			record.Emit("Less", record.Case{"left": l, "right": r, "out": o})
		}
	}
	return o
}
''')
edit('fieldpath/element.go',add_import)
wrap('fieldpath/serialize-pe.go',r'func DeserializePathElement\(s string\) \(PathElement, error\) \{','DeserializePathElement(','DeserializePathElement_(','''func DeserializePathElement(s string) (PathElement, error) {
	rec := record.Enter()
	defer record.Leave()
	o, err := DeserializePathElement_(s)
	if rec {
		c := record.Case{"key": s, "error": record.Error(err)}
		if err == nil {
			c["out"], _ = SerializePathElement(o)
		}
		record.Emit("Element", c)
	}
	return o, err
}
''')
edit('fieldpath/serialize-pe.go',add_import)
wrap('fieldpath/serialize.go',r'func \(s \*Set\) FromJSON\(r io.Reader\) error \{','FromJSON(','FromJSON_(','''func (s *Set) FromJSON(r io.Reader) error {
	rec := record.Enter()
	defer record.Leave()
	b, _ := io.ReadAll(r)
	err := s.FromJSON_(bytes.NewReader(b))
	if rec && json.Valid(b) {
		record.Emit("FieldsV1", record.Case{"fields": record.Raw(b, nil), "out": record.Raw(s.ToJSON()), "error": record.Error(err)})
	}
	return err
}
''')
edit('fieldpath/serialize.go',lambda s:add_import(s).replace('import (\n','import (\n\t"encoding/json"\n',1))
# values
for n,t,ty in [('Equals','bool','bool'),('Less','bool','bool')]:
    wrap('value/value.go',r'func %s\(lhs, rhs Value\) bool \{'%n,n+'(',n+'_(','''func %s(lhs, rhs Value) bool {
	rec := record.Enter()
	defer record.Leave()
	o := %s_(lhs, rhs)
	if rec {
		l, err := ToJSON(lhs)
		r, err2 := ToJSON(rhs)
		if err == nil && err2 == nil {
			record.Emit("Value%s", record.Case{"left": record.Raw(l, nil), "right": record.Raw(r, nil), "out": o})
		}
	}
	return o
}
'''%(n,n,n))
edit('value/value.go',add_import)
# typed
T='typed/typed.go'
wrap(T,r'func \(tv TypedValue\) Validate\(opts \.\.\.ValidationOptions\) error \{','Validate(','Validate_(','''func (tv TypedValue) recorded(c record.Case) record.Case {
	c["schema"], c["type"], c["value"] = record.Schema(tv.schema.Types), record.YAML(tv.typeRef), recordedValue(tv.value)
	return c
}

func recordedValue(v value.Value) any {
	return record.Raw(value.ToJSON(v))
}

func (tv TypedValue) RecordedValue() any { return recordedValue(tv.value) }

func (tv TypedValue) Validate(opts ...ValidationOptions) error {
	err := tv.Validate_(opts...)
	if tv.typeRef.NamedType != nil && *tv.typeRef.NamedType == "schema" {
		return err
	}
	record.Always("Validate", tv.recorded(record.Case{"twice": len(opts) > 0, "error": record.Error(err)}))
	return err
}
''')
wrap(T,r'func \(tv TypedValue\) ToFieldSet\(\) \(\*fieldpath\.Set, error\) \{','ToFieldSet(','ToFieldSet_(','''func (tv TypedValue) ToFieldSet() (*fieldpath.Set, error) {
	rec := record.Enter()
	defer record.Leave()
	o, err := tv.ToFieldSet_()
	if rec && err == nil {
		record.Emit("ToFieldSet", tv.recorded(record.Case{"out": record.Raw(o.ToJSON())}))
	}
	return o, err
}
''')
wrap(T,r'func \(tv TypedValue\) Merge\(pso \*TypedValue\) \(\*TypedValue, error\) \{','Merge(','Merge_(','''func (tv TypedValue) Merge(pso *TypedValue) (*TypedValue, error) {
	rec := record.Enter()
	defer record.Leave()
	o, err := tv.Merge_(pso)
	if rec && err == nil {
		record.Emit("Merge", tv.recorded(record.Case{"applied": recordedValue(pso.value), "out": recordedValue(o.value)}))
	}
	return o, err
}
''')
wrap(T,r'func \(tv TypedValue\) Compare\(rhs \*TypedValue\) \(c \*Comparison, err error\) \{','Compare(','Compare_(','''func (tv TypedValue) Compare(rhs *TypedValue) (c *Comparison, err error) {
	rec := record.Enter()
	defer record.Leave()
	o, err := tv.Compare_(rhs)
	if rec && err == nil {
		record.Emit("Compare", tv.recorded(record.Case{"new": recordedValue(rhs.value), "removed": record.Raw(o.Removed.ToJSON()), "modified": record.Raw(o.Modified.ToJSON()), "added": record.Raw(o.Added.ToJSON())}))
	}
	return o, err
}
''')
wrap(T,r'func \(tv TypedValue\) RemoveItems\(items \*fieldpath\.Set\) \*TypedValue \{','RemoveItems(','RemoveItems_(','''func (tv TypedValue) RemoveItems(items *fieldpath.Set) *TypedValue {
	rec := record.Enter()
	defer record.Leave()
	c := tv.recorded(record.Case{"set": record.Raw(items.ToJSON())})
	o := tv.RemoveItems_(items)
	if rec {
		c["out"] = recordedValue(o.value)
		record.Emit("RemoveItems", c)
	}
	return o
}
''')
wrap(T,r'func \(tv TypedValue\) ExtractItems\(items \*fieldpath\.Set, opts \.\.\.ExtractItemsOption\) \*TypedValue \{','ExtractItems(','ExtractItems_(','''func (tv TypedValue) ExtractItems(items *fieldpath.Set, opts ...ExtractItemsOption) *TypedValue {
	rec := record.Enter()
	defer record.Leave()
	c := tv.recorded(record.Case{"set": record.Raw(items.ToJSON()), "keys": len(opts) > 0})
	o := tv.ExtractItems_(items, opts...)
	if rec {
		c["out"] = recordedValue(o.value)
		record.Emit("ExtractItems", c)
	}
	return o
}
''')
edit(T,add_import)
wrap('typed/reconcile_schema.go',r'func ReconcileFieldSetWithSchema\(fieldset \*fieldpath\.Set, tv \*TypedValue\) \(\*fieldpath\.Set, error\) \{','ReconcileFieldSetWithSchema(','reconcileFieldSetWithSchema_(','''func ReconcileFieldSetWithSchema(fieldset *fieldpath.Set, tv *TypedValue) (*fieldpath.Set, error) {
	rec := record.Enter()
	defer record.Leave()
	o, err := reconcileFieldSetWithSchema_(fieldset, tv)
	if rec && err == nil {
		c := tv.recorded(record.Case{"set": record.Raw(fieldset.ToJSON()), "out": nil})
		delete(c, "value")
		if o != nil {
			c["out"] = record.Raw(o.ToJSON())
		}
		record.Emit("Reconcile", c)
	}
	return o, err
}
''')
edit('typed/reconcile_schema.go',add_import)
# updater
U='merge/update.go'
def upd(s):
    # In the order of their names, so that each recording has the same conversions.
    s=s.replace('''	for version, managed := range managedAtVersion {
''','''	versions := []fieldpath.APIVersion{}
	for version := range managedAtVersion {
		versions = append(versions, version)
	}
	sort.Slice(versions, func(i, j int) bool { return versions[i] < versions[j] })
	for _, version := range versions {
		managed := managedAtVersion[version]
''',1)
    s=s.replace('func (s *Updater) Update(','func (s *Updater) update_(',1).replace('func (s *Updater) Apply(','func (s *Updater) apply_(',1)
    s+='''
// conversions notes what the converter was asked.
type conversions struct {
	inner Converter
	types map[string]any
	notes []record.Case
}

func (c *conversions) Convert(o *typed.TypedValue, v fieldpath.APIVersion) (*typed.TypedValue, error) {
	n, err := c.inner.Convert(o, v)
	note := record.Case{"value": o.RecordedValue(), "to": v}
	switch {
	case err == nil:
		note["out"] = n.RecordedValue()
		c.types[string(v)] = record.Case{"schema": record.Schema(n.Schema().Types), "type": record.YAML(n.TypeRef())}
	case c.inner.IsMissingVersionError(err):
		note["missing"] = true
	default:
		note["error"] = err.Error()
	}
	c.notes = append(c.notes, note)
	return n, err
}

func (c *conversions) IsMissingVersionError(err error) bool { return c.inner.IsMissingVersionError(err) }

func recordedManagers(m fieldpath.ManagedFields) any {
	out := record.Case{}
	for name, set := range m {
		out[name] = record.Case{"version": set.APIVersion(), "set": record.Raw(set.Set().ToJSON())}
	}
	return out
}

func (s *Updater) recorded(op string, live, other *typed.TypedValue, version fieldpath.APIVersion, managers fieldpath.ManagedFields, manager string, force bool, f func(*Updater) (*typed.TypedValue, fieldpath.ManagedFields, error)) (*typed.TypedValue, fieldpath.ManagedFields, error) {
	rec := record.EnterBelow(1)
	defer record.Leave()
	c := record.Case{"live": live.RecordedValue(), "other": other.RecordedValue(), "version": version, "managers": recordedManagers(managers), "manager": manager, "force": force}
	conv := &conversions{inner: s.Converter, types: map[string]any{string(version): record.Case{"schema": record.Schema(live.Schema().Types), "type": record.YAML(live.TypeRef())}}}
	copied := *s
	copied.Converter = conv
	copied.returnInputOnNoop = false
	reset := record.Case{}
	for v, set := range s.IgnoredFields {
		reset[string(v)] = record.Raw(set.ToJSON())
	}
	for v, filter := range s.IgnoreFilter {
		set := fieldpath.ExcludedBy(filter)
		if set == nil {
			c["include"] = true
			continue
		}
		reset[string(v)] = record.Raw(set.ToJSON())
	}
	o, m, err := f(&copied)
	if rec {
		c["reset"], c["types"], c["conversions"] = reset, conv.types, conv.notes
		if conflicts, ok := err.(Conflicts); ok {
			found := []string{}
			for _, conflict := range conflicts {
				found = append(found, conflict.Manager+conflict.Path.String())
			}
			sort.Strings(found)
			c["conflicts"] = found
		} else if err != nil {
			c["error"] = err.Error()
		} else {
			c["after"], c["out"] = recordedManagers(m), nil
			if o != nil {
				c["out"] = o.RecordedValue()
			}
		}
		record.Emit(op, c)
	}
	if err == nil && o == nil && s.returnInputOnNoop {
		o = live
	}
	return o, m, err
}

func (s *Updater) Update(live, obj *typed.TypedValue, version fieldpath.APIVersion, managers fieldpath.ManagedFields, manager string) (*typed.TypedValue, fieldpath.ManagedFields, error) {
	return s.recorded("Update", live, obj, version, managers, manager, true, func(u *Updater) (*typed.TypedValue, fieldpath.ManagedFields, error) {
		return u.update_(live, obj, version, managers, manager)
	})
}

func (s *Updater) Apply(live, obj *typed.TypedValue, version fieldpath.APIVersion, managers fieldpath.ManagedFields, manager string, force bool) (*typed.TypedValue, fieldpath.ManagedFields, error) {
	return s.recorded("Apply", live, obj, version, managers, manager, force, func(u *Updater) (*typed.TypedValue, fieldpath.ManagedFields, error) {
		return u.apply_(live, obj, version, managers, manager, force)
	})
}
'''
    return add_import(s).replace('import (\n','import (\n\t"sort"\n',1)
edit(U,upd)
edit('fieldpath/set.go',lambda s:s+'''
// ExcludedBy is the set that a filter takes away, or nil when it is no such filter.
func ExcludedBy(f Filter) *Set {
	if e, ok := f.(excludeFilter); ok {
		return e.excludeSet
	}
	return nil
}
''')
# tests: one after another, and each tells its name
for p in glob.glob(os.path.join(root,'*/*_test.go')):
    s=open(p).read(); o=s
    s=re.sub(r'\n\s*t\.Parallel\(\)','',s)
    s=re.sub(r'(func(?: Test\w+)?\(t \*testing\.T\) \{\n)',r'\1record.Named(t.Name())\n',s)
    if 'record.Named' in s: s=add_import(s)
    if s!=o: open(p,'w').write(s)
