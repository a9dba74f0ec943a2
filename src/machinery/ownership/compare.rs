//! Compares two objects path by path.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    list_items::element_of,
    path_element::PathElement,
    path_set::PathSet,
    schema_mismatch::{MismatchCollector, SchemaMismatches},
    validate::{NO_FORM, scalar_problem},
    value_order::same,
};
use crate::machinery::schema::compiled::{ListSchema, MapSchema, Schema, SchemaForm, TypeRef};

/// Paths that differ between two objects. Each path is in only one of the sets, unless a list has
/// its item several times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObjectComparison {
    pub removed: PathSet,
    pub modified: PathSet,
    pub added: PathSet,
}

impl ObjectComparison {
    pub fn is_same(&self) -> bool {
        self.removed.is_empty() && self.modified.is_empty() && self.added.is_empty()
    }

    /// Returns the comparison without `paths` and the paths below them.
    #[must_use]
    pub fn without(self, paths: &PathSet) -> Self {
        if paths.is_empty() {
            return self;
        }
        Self {
            removed: self.removed.recursive_difference(paths),
            modified: self.modified.recursive_difference(paths),
            added: self.added.recursive_difference(paths),
        }
    }
}

/// Returns how `new` differs from `old`.
pub fn compare(
    schema: &Schema,
    old: &Value,
    new: &Value,
) -> Result<ObjectComparison, SchemaMismatches> {
    Ok(ComparingWalker { schema }.pair(Some(schema.root()), Some(old), Some(new))?.below)
}

/// What differs at a path and below it.
#[derive(Default)]
struct PathComparison {
    removed: bool,
    modified: bool,
    added: bool,
    below: ObjectComparison,
}

impl PathComparison {
    fn leaf(old: Option<&Value>, new: Option<&Value>) -> Self {
        let modified = old.zip(new).is_some_and(|(old, new)| !same(old, new));
        Self { modified, ..Self::presence(old, new, ObjectComparison::default()) }
    }

    fn presence(old: Option<&Value>, new: Option<&Value>, below: ObjectComparison) -> Self {
        Self { removed: new.is_none(), added: old.is_none(), modified: false, below }
    }

    fn add_to(self, element: &PathElement, all: &mut ObjectComparison) {
        let ObjectComparison { removed, modified, added } = self.below;
        all.removed.add(element.clone(), self.removed, removed);
        all.modified.add(element.clone(), self.modified, modified);
        all.added.add(element.clone(), self.added, added);
    }

    fn and(self, other: &Self) -> Self {
        Self {
            removed: self.removed || other.removed,
            modified: self.modified || other.modified,
            added: self.added || other.added,
            below: ObjectComparison {
                removed: self.below.removed.union(&other.below.removed),
                modified: self.below.modified.union(&other.below.modified),
                added: self.below.added.union(&other.below.added),
            },
        }
    }
}

struct ComparingWalker<'a> {
    schema: &'a Schema,
}

impl<'a> ComparingWalker<'a> {
    fn pair(
        &self,
        type_: Option<TypeRef>,
        old: Option<&Value>,
        new: Option<&Value>,
    ) -> Result<PathComparison, SchemaMismatches> {
        let by_old = self.schema.form(type_, old).ok_or_else(|| SchemaMismatches::new(NO_FORM))?;
        let by_new = self.schema.form(type_, new).ok_or_else(|| SchemaMismatches::new(NO_FORM))?;
        match (old, new) {
            (_, None) => self.form(by_old, old, new),
            (None, _) => self.form(by_new, old, new),
            _ if by_old.is_like(by_new) => self.form(by_new, old, new),
            // The value changed its form: the old content is removed, the new content is added.
            _ => Ok(self.form(by_old, old, new)?.and(&self.form(by_new, old, new)?)),
        }
    }

    fn form(
        &self,
        form: SchemaForm<'a>,
        old: Option<&Value>,
        new: Option<&Value>,
    ) -> Result<PathComparison, SchemaMismatches> {
        match form {
            SchemaForm::Scalar(scalar) => {
                match (scalar_problem(scalar, old), scalar_problem(scalar, new)) {
                    (Some(old), Some(new)) => {
                        Err(SchemaMismatches::new(format!("old: {old}, new: {new}")))
                    }
                    _ => Ok(PathComparison::leaf(old, new)),
                }
            }
            SchemaForm::List(list) => {
                let (before, after) = (items(old), items(new));
                if list.atomic || before.is_empty() && after.is_empty() {
                    return Ok(PathComparison::leaf(old, new));
                }
                Ok(PathComparison::presence(old, new, self.list(list, before, after)?))
            }
            SchemaForm::Map(map) => {
                let empty = |value: Option<&Value>| {
                    value.and_then(Value::as_object).is_none_or(serde_json::Map::is_empty)
                };
                if map.atomic || empty(old) && empty(new) {
                    return Ok(PathComparison::leaf(old, new));
                }
                Ok(PathComparison::presence(old, new, self.map(map, old, new)?))
            }
        }
    }

    fn map(
        &self,
        map: &MapSchema,
        old: Option<&Value>,
        new: Option<&Value>,
    ) -> Result<ObjectComparison, SchemaMismatches> {
        let old = old.and_then(Value::as_object);
        let new = new.and_then(Value::as_object);
        let mut found = MismatchCollector::default();
        let mut all = ObjectComparison::default();
        for name in names(old, new) {
            let element = PathElement::field(name);
            let (old, new) = (old.and_then(|o| o.get(name)), new.and_then(|n| n.get(name)));
            if let (Some(old), Some(new)) = (old, new)
                && old == new
                && map.of_field(name).is_some()
            {
                continue;
            }
            let differs = self.pair(map.of_field(name), old, new).map_err(|p| p.below(&element));
            if let Some(differs) = found.take(differs) {
                differs.add_to(&element, &mut all);
            }
        }
        found.end()?;
        Ok(all)
    }

    fn list(
        &self,
        list: &ListSchema,
        old: &[Value],
        new: &[Value],
    ) -> Result<ObjectComparison, SchemaMismatches> {
        let mut found = MismatchCollector::default();
        let mut by_element: BTreeMap<PathElement, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
        let places = [old, new].into_iter().enumerate();
        for (side, at, item) in places
            .flat_map(|(side, items)| items.iter().enumerate().map(move |(at, i)| (side, at, i)))
        {
            let element = element_of(self.schema, list, item)
                .map_err(|why| SchemaMismatches::new(format!("element {at}: {why}")));
            if let Some(element) = found.take(element) {
                let (before, after) = by_element.entry(element).or_default();
                if side == 0 { before.push(item) } else { after.push(item) }
            }
        }
        let mut all = ObjectComparison::default();
        for (element, (before, after)) in by_element {
            let mut pair =
                |old: Option<&Value>, new: Option<&Value>, all: &mut ObjectComparison| {
                    let differs = self.pair(list.items, old, new).map_err(|p| p.below(&element));
                    if let Some(differs) = found.take(differs) {
                        differs.add_to(&element, all);
                    }
                };
            match (&before[..], &after[..]) {
                ([] | [_], [] | [_]) => {
                    pair(before.first().copied(), after.first().copied(), &mut all);
                }
                // Items that are there several times are compared together, as one leaf.
                ([_, _, ..], [_, _, ..]) => {
                    let equal = before.len() == after.len()
                        && before.iter().zip(&after).all(|(old, new)| same(old, new));
                    all.modified.add(element, !equal, PathSet::default());
                }
                ([_, _, ..], rest) => {
                    if let [only] = rest {
                        pair(None, Some(only), &mut all);
                    }
                    all.removed.add(element, true, PathSet::default());
                }
                (rest, [_, _, ..]) => {
                    if let [only] = rest {
                        pair(Some(only), None, &mut all);
                    }
                    all.added.add(element, true, PathSet::default());
                }
            }
        }
        found.end()?;
        Ok(all)
    }
}

fn items(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns the field names of both objects, sorted, each once.
pub(super) fn names<'a>(
    left: Option<&'a serde_json::Map<String, Value>>,
    right: Option<&'a serde_json::Map<String, Value>>,
) -> Vec<&'a str> {
    let mut names: Vec<&str> =
        left.into_iter().chain(right).flat_map(|map| map.keys().map(String::as_str)).collect();
    names.sort_unstable();
    names.dedup();
    names
}
