package config

import (
	"encoding"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// Overlay sets the fields of the struct that v points to from environment
// variables. The variable of a key is prefix plus the key's path in upper
// snake case: with the prefix TRIVET_SERVER_, raft.electionTimeout is
// TRIVET_SERVER_RAFT_ELECTION_TIMEOUT. Text, numbers, booleans, types that
// decode text, and lists of text (comma separated) can be set; lists of
// structs and maps cannot. An empty variable counts as not set. Variables with
// the prefix that name no key are left alone: container platforms make such
// names up.
func Overlay(v any, prefix string, lookup func(string) (string, bool)) error {
	return overlay(reflect.ValueOf(v).Elem(), prefix, lookup)
}

func overlay(v reflect.Value, prefix string, lookup func(string) (string, bool)) error {
	fields := fieldsOf(v.Type())
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		field := fields[name]
		variable := prefix + upperSnake(name)
		target := v.FieldByIndex(field.Index)
		if field.Type.Kind() == reflect.Struct && !decodesItself(field.Type) {
			if err := overlay(target, variable+"_", lookup); err != nil {
				return err
			}
			continue
		}
		text, ok := lookup(variable)
		if !ok || text == "" {
			continue
		}
		if err := setText(target, text); err != nil {
			return errs.New(codes.InvalidArgument, ReasonInvalid, "environment variable %s: %w", variable, err)
		}
	}
	return nil
}

func setText(v reflect.Value, text string) error {
	if d, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return d.UnmarshalText([]byte(text))
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
		return nil
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.String {
			list := reflect.MakeSlice(v.Type(), 0, 1)
			for item := range strings.SplitSeq(text, ",") {
				list = reflect.Append(list, reflect.ValueOf(strings.TrimSpace(item)).Convert(v.Type().Elem()))
			}
			v.Set(list)
			return nil
		}
	case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64,
		reflect.Float32, reflect.Float64:
		// JSON's syntax for these is the one that files use.
		if json.Unmarshal([]byte(text), v.Addr().Interface()) == nil {
			return nil
		}
		return errs.New(codes.InvalidArgument, ReasonInvalid, "want %s, found %s", wanted(v.Type()), strconv.Quote(text))
	}
	return errs.New(codes.InvalidArgument, ReasonInvalid, "a value of type %s can only be set in the file", v.Type())
}

// upperSnake turns lowerCamel into UPPER_SNAKE.
func upperSnake(key string) string {
	var b strings.Builder
	for i, r := range key {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToUpper(r))
	}
	return b.String()
}
