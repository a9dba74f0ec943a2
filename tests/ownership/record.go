// Package record writes what upstream's own tests ask of structured-merge-diff, and what it
// answers: one case a line. record.sh lays it into a copy of the module.
package record

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strings"

	"go.yaml.in/yaml/v2"
)

// Case is a call and its outcome.
type Case = map[string]any

// Most cases of one operation in one test function: some try random sets, which are large.
func most(op string) int {
	switch op {
	case "Equals", "FieldsV1":
		return 12
	case "ValueEquals", "ValueLess", "Less":
		return 60
	default:
		return 1000
	}
}

var (
	out     *os.File
	seen    = map[string]bool{}
	count   = map[string]int{}
	schemas = map[string]int{}
	depth   int
	test    string
)

func init() {
	if path := os.Getenv("RECORD"); path != "" {
		out, _ = os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	}
}

// Named tells the name of the test that runs from now on; tests run one after another.
func Named(name string) { test = name }

// Enter says whether a call came from a test, and not from the module itself. Leave ends it.
func Enter() bool { return EnterBelow(1) }

// EnterBelow is Enter, called by a helper so many frames below the method.
func EnterBelow(frames int) bool {
	depth++
	if depth > 1 || out == nil {
		return false
	}
	_, file, _, _ := runtime.Caller(2 + frames)
	return strings.HasSuffix(file, "_test.go") || strings.HasSuffix(file, "/fixture/state.go")
}

// Leave ends what Enter began.
func Leave() { depth-- }

// Emit writes a case, unless the same was written before.
func Emit(op string, c Case) {
	function, _, _ := strings.Cut(test, "/")
	c["op"] = op
	key := line(c)
	if seen[key] || count[op+function] >= most(op) {
		return
	}
	seen[key] = true
	count[op+function]++
	c["case"] = test
	out.WriteString(line(c))
}

// Always writes a case whoever asked, as long as no other one is under way.
func Always(op string, c Case) {
	if depth == 0 && out != nil {
		Emit(op, c)
	}
}

// Schema writes a schema when it is new, and returns its name.
func Schema(types any) string {
	b, err := yaml.Marshal(types)
	if err != nil {
		panic(err)
	}
	id, known := schemas[string(b)]
	if !known {
		id = len(schemas)
		schemas[string(b)] = id
	}
	name := fmt.Sprintf("%s-%d", os.Getenv("RECORD_PACKAGE"), id)
	if !known && out != nil {
		out.WriteString(line(Case{"op": "Schema", "name": name, "types": YAML(types)}))
	}
	return name
}

// YAML is a value as upstream writes it in YAML.
func YAML(v any) any {
	b, err := yaml.Marshal(v)
	if err != nil {
		panic(err)
	}
	var read any
	if err := yaml.Unmarshal(b, &read); err != nil {
		panic(err)
	}
	return plain(read)
}

func plain(v any) any {
	switch v := v.(type) {
	case map[any]any:
		object := Case{}
		for key, value := range v {
			object[fmt.Sprint(key)] = plain(value)
		}
		return object
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	}
	return v
}

func line(c Case) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(c); err != nil {
		panic(err)
	}
	return b.String()
}

// Raw is JSON that was written already.
func Raw(b []byte, err error) any {
	if err != nil {
		return nil
	}
	return json.RawMessage(b)
}

// Error is the text of an error, or nil.
func Error(err error) any {
	if err == nil {
		return nil
	}
	return err.Error()
}
