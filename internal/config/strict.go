package config

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"sort"
	"strings"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// check compares a JSON document with the type of v before it is decoded.
// encoding/json alone would match keys in any letter case, stop at the first
// problem, and not say where it is.
func check(file string, doc []byte, v any) error {
	c := checker{}
	c.value("", doc, reflect.TypeOf(v).Elem())
	if len(c.problems) == 0 {
		return nil
	}
	text := make([]string, len(c.problems))
	for i, p := range c.problems {
		text[i] = p.text
	}
	err := errs.New(codes.InvalidArgument, ReasonInvalid, "%s: %s", file, strings.Join(text, "; "))
	for _, p := range c.problems {
		if len(p.known) > 0 {
			return err.WithHint("keys allowed %s: %s", p.where, strings.Join(p.known, ", "))
		}
	}
	return err
}

// problem is one refusal. known lists the keys that were possible, where says
// at which place, both only for an unknown key.
type problem struct {
	text  string
	where string
	known []string
}

type checker struct {
	problems []problem
}

func (c *checker) refuse(path, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if path != "" {
		text = path + ": " + text
	}
	c.problems = append(c.problems, problem{text: text})
}

func (c *checker) value(path string, raw json.RawMessage, t reflect.Type) {
	for t.Kind() == reflect.Pointer && !decodesItself(t) {
		t = t.Elem()
	}
	if string(raw) == "null" { // a key without a value keeps the default
		return
	}
	if decodesItself(t) || t.Kind() == reflect.Interface {
		c.leaf(path, raw, t)
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		if object, ok := c.object(path, raw); ok {
			c.fields(path, object, t)
		}
	case reflect.Map:
		if object, ok := c.object(path, raw); ok {
			for _, key := range sortedKeys(object) {
				c.value(join(path, key), object[key], t.Elem())
			}
		}
	case reflect.Slice, reflect.Array:
		c.list(path, raw, t)
	default:
		c.leaf(path, raw, t)
	}
}

func (c *checker) object(path string, raw json.RawMessage) (map[string]json.RawMessage, bool) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(raw, &object); err != nil {
		c.refuse(path, "want a mapping (key: value), found %s", kindOf(raw))
		return nil, false
	}
	return object, true
}

func (c *checker) list(path string, raw json.RawMessage, t reflect.Type) {
	if t.Elem().Kind() == reflect.Uint8 { // []byte: base64 text
		c.leaf(path, raw, t)
		return
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		c.refuse(path, "want a list, found %s", kindOf(raw))
		return
	}
	for i, item := range list {
		c.value(fmt.Sprintf("%s[%d]", path, i), item, t.Elem())
	}
}

func (c *checker) fields(path string, object map[string]json.RawMessage, t reflect.Type) {
	known := fieldsOf(t)
	names := make([]string, 0, len(known))
	for name := range known {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, key := range sortedKeys(object) {
		field, ok := known[key]
		if ok {
			c.value(join(path, key), object[key], field.Type)
			continue
		}
		text := join(path, key) + ": unknown key"
		if near := Closest(key, names); near != "" {
			text += fmt.Sprintf("; did you mean %q?", near)
		}
		where := "at the top"
		if path != "" {
			where = "under " + path
		}
		c.problems = append(c.problems, problem{text: text, where: where, known: names})
	}
}

func (c *checker) leaf(path string, raw json.RawMessage, t reflect.Type) {
	err := json.Unmarshal(raw, reflect.New(t).Interface())
	if err == nil {
		return
	}
	if _, ok := err.(*json.UnmarshalTypeError); ok {
		c.refuse(path, "want %s, found %s", wanted(t), kindOf(raw))
		return
	}
	c.refuse(path, "%s", err)
}

var (
	jsonDecoder = reflect.TypeFor[json.Unmarshaler]()
	textDecoder = reflect.TypeFor[encoding.TextUnmarshaler]()
)

func decodesItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(jsonDecoder) || p.Implements(textDecoder)
}

// fieldsOf lists the keys of a struct as encoding/json sees them, those of
// embedded structs included.
func fieldsOf(t reflect.Type) map[string]reflect.StructField {
	out := map[string]reflect.StructField{}
	for _, f := range reflect.VisibleFields(t) {
		if !f.IsExported() || f.Anonymous {
			continue
		}
		if name := keyOf(f); name != "" {
			out[name] = f
		}
	}
	return out
}

// keyOf is the key of a field, "" for a field that has none.
func keyOf(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	switch name {
	case "-":
		return ""
	case "":
		return f.Name
	}
	return name
}

func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "text (put it in quotes)"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "a whole number in range"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number in range, not negative"
	case reflect.Float32, reflect.Float64:
		return "a number"
	}
	return "a value of type " + t.String()
}

func kindOf(raw json.RawMessage) string {
	raw = bytes.TrimSpace(raw)
	switch raw[0] {
	case '{':
		return "a mapping"
	case '[':
		return "a list"
	case '"':
		return "the text " + string(raw)
	case 't', 'f':
		return string(raw)
	}
	return "the number " + string(raw)
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func sortedKeys(m map[string]json.RawMessage) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
