package tunnel

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Codec is gRPC's proto codec, except that the messages of Serve and Relay stay
// in the transport's buffers: a relay copies no payload and an endpoint writes
// from, and reads into, what gRPC sends and received. The bytes on the wire are
// the same. Install it with grpc.ForceServerCodecV2 and grpc.ForceCodecV2 (a
// call option); Serve and Relay find out by themselves and work without it, at
// a few copies and allocations per message.
//
// The zero value is ready; it is safe for concurrent use.
type Codec struct{}

var _ encoding.CodecV2 = Codec{}

// protoName is the name that the content type of every gRPC call carries.
const protoName = "proto"

// Name returns the name of the proto codec.
func (Codec) Name() string { return protoName }

// Marshal encodes v.
func (Codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*message)
	if !ok {
		return encoding.GetCodecV2(protoName).Marshal(v)
	}
	m.passed = true
	if m.data == nil {
		return encoding.GetCodecV2(protoName).Marshal(m.TunnelMessage)
	}
	m.data.Ref()
	return m.data, nil
}

// Unmarshal decodes data into v.
func (Codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*message)
	if !ok {
		return encoding.GetCodecV2(protoName).Unmarshal(data, v)
	}
	m.passed = true
	if skip, ok := payloadOffset(data); ok {
		data.Ref()
		m.data, m.skip = data, skip
		return nil
	}
	// Not the one field that every encoder writes: an empty message, or one
	// with fields that this version does not know.
	return encoding.GetCodecV2(protoName).Unmarshal(data, m.TunnelMessage)
}

// payloadOffset finds the payload in an encoded message that consists of
// nothing else and is not empty.
func payloadOffset(data mem.BufferSlice) (int, bool) {
	const tag = byte(1<<3 | protowire.BytesType)
	var (
		head  [1 + 10]byte
		n     int
		total = data.Len()
	)
	for _, b := range data {
		if n += copy(head[n:], b.ReadOnlyData()); n == len(head) {
			break
		}
	}
	if n == 0 || head[0] != tag {
		return 0, false
	}
	size, k := protowire.ConsumeVarint(head[1:n])
	if k < 0 || size == 0 || size != uint64(total-1-k) {
		return 0, false
	}
	return 1 + k, true
}
