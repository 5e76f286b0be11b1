package tunnel

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"trivet/proto/telepresence/manager"
)

// message is a TunnelMessage that may still be in the transport's buffers. To
// any codec but ours it is the embedded message; passed says afterwards which
// of the two codecs it met. One goroutine uses it at a time.
type message struct {
	*manager.TunnelMessage
	// data is the encoded message, of which this one holds a reference, or nil
	// if the embedded message counts. The payload starts at skip.
	data mem.BufferSlice
	skip int
	// passed is set by Codec.
	passed bool
}

// setNormal makes m a Normal message of a buffer that starts with its code; the
// caller's reference passes to m.
func (m *message) setNormal(payload mem.Buffer) {
	head := protowire.AppendTag(make([]byte, 0, 8), 1, protowire.BytesType)
	head = protowire.AppendVarint(head, uint64(payload.Len()))
	m.data, m.skip = mem.BufferSlice{mem.SliceBuffer(head), payload}, len(head)
}

// release gives the buffers back and the embedded message away: a stream that
// it was sent to may keep it.
func (m *message) release() {
	keep := m.TunnelMessage
	if m.data == nil || len(keep.GetPayload()) > 0 {
		keep = nil
	}
	m.data.Free()
	*m = message{TunnelMessage: keep}
}

// payloadLen returns the length of the payload, code included.
func (m *message) payloadLen() int {
	if m.data == nil {
		return len(m.GetPayload())
	}
	return m.data.Len() - m.skip
}

// code returns the first byte of the payload, which must not be empty.
func (m *message) code() Code {
	if m.data == nil {
		return Code(m.Payload[0])
	}
	skip := m.skip
	for _, b := range m.data {
		p := b.ReadOnlyData()
		if skip < len(p) {
			return Code(p[skip])
		}
		skip -= len(p)
	}
	panic("tunnel: message of buffers without a payload")
}

// appendBody appends the parts of the body (the payload without its code) to
// dst. They are valid until release.
func (m *message) appendBody(dst [][]byte) [][]byte {
	if m.data == nil {
		if len(m.GetPayload()) > 1 {
			dst = append(dst, m.Payload[1:])
		}
		return dst
	}
	skip := m.skip + 1
	for _, b := range m.data {
		p := b.ReadOnlyData()
		k := min(skip, len(p))
		skip -= k
		if k < len(p) {
			dst = append(dst, p[k:])
		}
	}
	return dst
}

// copyOut fills the embedded message, so that m can be sent by any codec.
func (m *message) copyOut() {
	if m.data == nil {
		return
	}
	p := make([]byte, 0, m.payloadLen())
	p = append(p, byte(m.code()))
	for _, part := range m.appendBody(nil) {
		p = append(p, part...)
	}
	m.TunnelMessage = &manager.TunnelMessage{Payload: p}
}
