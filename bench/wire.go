package bench

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// passthrough is a codec whose messages are encoded already (*[]byte), so that
// one client costs the same whatever server it talks to. Answers are not looked
// at unless they are asked for: nil takes none.
type passthrough struct{}

// Name is that of the codec that servers expect.
func (passthrough) Name() string { return "proto" }

// Marshal hands the bytes over as they are; they must not be changed after.
func (passthrough) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("encode a %T: only bytes pass through", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(*b)}, nil
}

// Unmarshal copies the bytes, if anybody wants them.
func (passthrough) Unmarshal(data mem.BufferSlice, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("decode into a %T: only bytes pass through", v)
	}
	if b != nil {
		*b = data.Materialize()
	}
	return nil
}

// Fields of the few requests that the load consists of. Both stores put key
// and value into the first two.
const (
	fieldKey   protowire.Number = 1
	fieldValue protowire.Number = 2
	// fieldSerializable is RangeRequest's.
	fieldSerializable protowire.Number = 7
	// Of StatusResponse and the header in it.
	fieldHeader   protowire.Number = 1
	fieldMemberID protowire.Number = 2
	fieldLeader   protowire.Number = 4
)

// encodePut is a request of a key and a value.
func encodePut(key string, value []byte) []byte {
	out := protowire.AppendTag(make([]byte, 0, len(key)+len(value)+8), fieldKey, protowire.BytesType)
	out = protowire.AppendString(out, key)
	out = protowire.AppendTag(out, fieldValue, protowire.BytesType)
	return protowire.AppendBytes(out, value)
}

// encodeGet is a request of a key.
func encodeGet(key string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, fieldKey, protowire.BytesType), key)
}

// encodeRange is etcd's read of one key.
func encodeRange(key string, serializable bool) []byte {
	out := encodeGet(key)
	if serializable {
		out = protowire.AppendVarint(protowire.AppendTag(out, fieldSerializable, protowire.VarintType), 1)
	}
	return out
}

// decodeLeads says whether an answer to etcd's Status is the leader's own.
func decodeLeads(answer []byte) (bool, error) {
	var member, leader uint64
	err := fields(answer, func(n protowire.Number, value uint64, body []byte) error {
		switch n {
		case fieldHeader:
			return fields(body, func(n protowire.Number, value uint64, _ []byte) error {
				if n == fieldMemberID {
					member = value
				}
				return nil
			})
		case fieldLeader:
			leader = value
		}
		return nil
	})
	return leader != 0 && member == leader, err
}

// fields walks over a message and gives the value of a varint field or the
// body of one with a length.
func fields(msg []byte, each func(n protowire.Number, value uint64, body []byte) error) error {
	for len(msg) > 0 {
		n, typ, size := protowire.ConsumeTag(msg)
		if size < 0 {
			return fmt.Errorf("decode a field: %w", protowire.ParseError(size))
		}
		msg = msg[size:]
		var value uint64
		var body []byte
		switch typ {
		case protowire.VarintType:
			value, size = protowire.ConsumeVarint(msg)
		case protowire.BytesType:
			body, size = protowire.ConsumeBytes(msg)
		default:
			size = protowire.ConsumeFieldValue(n, typ, msg)
		}
		if size < 0 {
			return fmt.Errorf("decode field %d: %w", n, protowire.ParseError(size))
		}
		msg = msg[size:]
		if err := each(n, value, body); err != nil {
			return err
		}
	}
	return nil
}
