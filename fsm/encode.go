package fsm

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// The canonical form of a message, version SchemaVersion. It depends on the
// message's value and its schema alone, not on protobuf's marshaller, which
// promises no stable bytes:
//
//	message = { field } 0
//	field   = number value           populated fields, numbers ascending
//	value   = signed integers, enums  zigzag varint
//	          unsigned integers       varint
//	          bool                    one byte, 0 or 1
//	          floats                  8 bytes, big endian, IEEE 754 double
//	          string, bytes           length, bytes
//	          message                 message
//	          list                    count, values
//	          map                     count, keys and values, sorted by key
//	unknown fields, if any, follow the last known one as number 2^29 (which no
//	field can have), length, bytes as received.
//
// Numbers, lengths and counts are unsigned varints.
const unknownFields = 1 << 29

// encoder makes canonical forms and the digests of rows. It belongs to one
// goroutine.
type encoder struct {
	buf    []byte
	fields map[protoreflect.MessageDescriptor][]protoreflect.FieldDescriptor
}

func newEncoder() *encoder {
	return &encoder{fields: map[protoreflect.MessageDescriptor][]protoreflect.FieldDescriptor{}}
}

// encodeMessage is the encode function of tables whose rows are messages.
func encodeMessage[R proto.Message](e *encoder, row R) { e.message(row.ProtoReflect()) }

func (e *encoder) uvarint(n uint64) { e.buf = binary.AppendUvarint(e.buf, n) }

func (e *encoder) str(s string) {
	e.uvarint(uint64(len(s)))
	e.buf = append(e.buf, s...)
}

func (e *encoder) bytes(b []byte) {
	e.uvarint(uint64(len(b)))
	e.buf = append(e.buf, b...)
}

// ordered returns the fields of a message in the order of their numbers.
func (e *encoder) ordered(d protoreflect.MessageDescriptor) []protoreflect.FieldDescriptor {
	if fields, ok := e.fields[d]; ok {
		return fields
	}
	fields := make([]protoreflect.FieldDescriptor, d.Fields().Len())
	for i := range fields {
		fields[i] = d.Fields().Get(i)
	}
	slices.SortFunc(fields, func(a, b protoreflect.FieldDescriptor) int {
		return cmp.Compare(a.Number(), b.Number())
	})
	e.fields[d] = fields
	return fields
}

func (e *encoder) message(m protoreflect.Message) {
	for _, fd := range e.ordered(m.Descriptor()) {
		if !m.Has(fd) {
			continue
		}
		e.uvarint(uint64(fd.Number()))
		switch v := m.Get(fd); {
		case fd.IsList():
			e.list(fd, v.List())
		case fd.IsMap():
			e.mapping(fd, v.Map())
		default:
			e.scalar(fd, v)
		}
	}
	if unknown := m.GetUnknown(); len(unknown) > 0 {
		e.uvarint(unknownFields)
		e.bytes(unknown)
	}
	e.uvarint(0)
}

func (e *encoder) list(fd protoreflect.FieldDescriptor, l protoreflect.List) {
	e.uvarint(uint64(l.Len()))
	for i := range l.Len() {
		e.scalar(fd, l.Get(i))
	}
}

func (e *encoder) mapping(fd protoreflect.FieldDescriptor, m protoreflect.Map) {
	keys := make([]protoreflect.MapKey, 0, m.Len())
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k)
		return true
	})
	slices.SortFunc(keys, compareKeys)
	e.uvarint(uint64(len(keys)))
	for _, k := range keys {
		e.scalar(fd.MapKey(), k.Value())
		e.scalar(fd.MapValue(), m.Get(k))
	}
}

// compareKeys orders the keys of one map; its keys all have the same type.
func compareKeys(a, b protoreflect.MapKey) int {
	switch x := a.Interface().(type) {
	case bool:
		switch {
		case x == b.Bool():
			return 0
		case b.Bool():
			return -1
		}
		return 1
	case int32, int64:
		return cmp.Compare(a.Int(), b.Int())
	case uint32, uint64:
		return cmp.Compare(a.Uint(), b.Uint())
	}
	return strings.Compare(a.String(), b.String())
}

func (e *encoder) scalar(fd protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		if v.Bool() {
			e.buf = append(e.buf, 1)
		} else {
			e.buf = append(e.buf, 0)
		}
	case protoreflect.EnumKind:
		e.buf = binary.AppendVarint(e.buf, int64(v.Enum()))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind,
		protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		e.buf = binary.AppendVarint(e.buf, v.Int())
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind,
		protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		e.uvarint(v.Uint())
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		e.buf = binary.BigEndian.AppendUint64(e.buf, math.Float64bits(v.Float()))
	case protoreflect.StringKind:
		e.str(v.String())
	case protoreflect.BytesKind:
		e.bytes(v.Bytes())
	case protoreflect.MessageKind, protoreflect.GroupKind:
		e.message(v.Message())
	}
}
