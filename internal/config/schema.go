package config

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
)

// Schema returns the JSON Schema (draft 2020-12) of the files that fill a T.
// Descriptions come from the doc tags of the fields, defaults from SetDefaults.
func Schema[T any](title string) ([]byte, error) {
	v := new(T)
	if d, ok := any(v).(Defaulter); ok {
		d.SetDefaults()
	}
	s := schemaOf(reflect.ValueOf(v).Elem())
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = title
	out, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(out, '\n'), nil
}

// schemaOf describes the type of v; what v holds is the default.
func schemaOf(v reflect.Value) map[string]any {
	t := v.Type()
	switch {
	case t == reflect.TypeFor[Duration]():
		return withDefault(map[string]any{"type": "string", "examples": []string{"500ms", "2h"}}, v)
	case decodesItself(t):
		return withDefault(map[string]any{"type": "string"}, v)
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(reflect.New(t.Elem()).Elem())
	case reflect.Struct:
		properties := map[string]any{}
		for name, f := range fieldsOf(t) {
			p := schemaOf(v.FieldByIndex(f.Index))
			if doc := f.Tag.Get("doc"); doc != "" {
				p["description"] = doc
			}
			properties[name] = p
		}
		return map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schemaOf(reflect.New(t.Elem()).Elem())}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return map[string]any{"type": "string", "contentEncoding": "base64"}
		}
		return map[string]any{"type": "array", "items": schemaOf(reflect.New(t.Elem()).Elem())}
	case reflect.Bool:
		return withDefault(map[string]any{"type": "boolean"}, v)
	case reflect.String:
		return withDefault(map[string]any{"type": "string"}, v)
	case reflect.Float32, reflect.Float64:
		return withDefault(map[string]any{"type": "number"}, v)
	default:
		s := map[string]any{"type": "integer"}
		if t.Kind() >= reflect.Uint && t.Kind() <= reflect.Uint64 {
			s["minimum"] = 0
		}
		return withDefault(s, v)
	}
}

func withDefault(s map[string]any, v reflect.Value) map[string]any {
	if !v.IsZero() {
		s["default"] = v.Interface()
	}
	return s
}

// Value is one key of a configuration and where its value comes from.
type Value struct {
	Key string `json:"key"`
	// Value as JSON.
	Value json.RawMessage `json:"value"`
	// Source is "file", the name of the environment variable, or "default", also
	// for a file that repeats the default.
	Source string `json:"source"`
}

// Explain reads a file as Load and Overlay do and says where each value comes
// from. Keys that are not set and have no default are left out.
func Explain[T any](path, prefix string, lookup func(string) (string, bool)) ([]Value, error) {
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	loaded, err := Parse[T](path, data)
	if err != nil {
		return nil, err
	}
	fromFile := flatten("", reflect.ValueOf(loaded).Elem())
	defaults := new(T)
	if d, ok := any(defaults).(Defaulter); ok {
		d.SetDefaults()
	}
	initial := flatten("", reflect.ValueOf(defaults).Elem())
	if err := Overlay(loaded, prefix, lookup); err != nil {
		return nil, err
	}
	var out []Value
	for key, value := range flatten("", reflect.ValueOf(loaded).Elem()) {
		v := Value{Key: key, Value: value, Source: "file"}
		variable := prefix + upperSnake(strings.ReplaceAll(key, ".", "_"))
		if text, ok := lookup(variable); ok && text != "" {
			v.Source = variable
		} else if string(fromFile[key]) == string(initial[key]) {
			v.Source = "default"
		}
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b Value) int { return strings.Compare(a.Key, b.Key) })
	return out, nil
}

// flatten lists the leaves that are set, by their paths.
func flatten(path string, v reflect.Value) map[string]json.RawMessage {
	out := map[string]json.RawMessage{}
	for name, f := range fieldsOf(v.Type()) {
		field, at := v.FieldByIndex(f.Index), join(path, name)
		if field.Kind() == reflect.Struct && !decodesItself(field.Type()) {
			for k, x := range flatten(at, field) {
				out[k] = x
			}
			continue
		}
		if field.IsZero() {
			continue
		}
		if raw, err := json.Marshal(field.Interface()); err == nil {
			out[at] = raw
		}
	}
	return out
}
