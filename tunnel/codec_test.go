package tunnel

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"trivet/proto/telepresence/manager"
)

// cut makes a BufferSlice of b in pieces of at most n bytes.
func cut(b []byte, n int) mem.BufferSlice {
	var s mem.BufferSlice
	for len(b) > 0 {
		k := min(n, len(b))
		s = append(s, mem.SliceBuffer(b[:k]))
		b = b[k:]
	}
	return s
}

func body(m *message) []byte { return bytes.Join(m.appendBody(nil), nil) }

func TestCodecWritesTheBytesOfTheProtoCodec(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 126, 127, 128, 16382, 16383, 16384, largeRead} {
		payload := append([]byte{byte(CodeNormal)}, bytes.Repeat([]byte{'x'}, n)...)
		want, err := proto.Marshal(&manager.TunnelMessage{Payload: payload})
		if err != nil {
			t.Fatal(err)
		}
		var m message
		m.setNormal(mem.SliceBuffer(payload))
		got, err := Codec{}.Marshal(&m)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Materialize(), want) || !m.passed {
			t.Errorf("%d bytes differ", n)
		}
		if m.payloadLen() != len(payload) || m.code() != CodeNormal || !bytes.Equal(body(&m), payload[1:]) {
			t.Errorf("%d bytes: message of %d bytes", n, m.payloadLen())
		}
		m.copyOut()
		if got, err = encoding.GetCodecV2("proto").Marshal(m.TunnelMessage); err != nil ||
			!bytes.Equal(got.Materialize(), want) {
			t.Errorf("%d bytes differ after copyOut: %v", n, err)
		}
	}
}

func TestCodecReadsAnyCut(t *testing.T) {
	t.Parallel()
	payload := append([]byte{byte(CodeSession)}, bytes.Repeat([]byte("abc"), 100)...)
	wire, err := proto.Marshal(&manager.TunnelMessage{Payload: payload})
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= len(wire); n++ {
		m := message{TunnelMessage: new(manager.TunnelMessage)}
		if err := (Codec{}).Unmarshal(cut(wire, n), &m); err != nil {
			t.Fatal(err)
		}
		if m.data == nil || m.code() != CodeSession || !bytes.Equal(body(&m), payload[1:]) {
			t.Fatalf("cut at %d: code %s, %d bytes", n, m.code(), len(body(&m)))
		}
		out, err := Codec{}.Marshal(&m)
		if err != nil || !bytes.Equal(out.Materialize(), wire) {
			t.Fatalf("cut at %d: %v", n, err)
		}
		m.release()
	}
}

func TestCodecKeepsWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	for name, wire := range map[string][]byte{
		"unknown field after":  unhex(t, "0a 02 0061 12 01 62"),
		"unknown field before": unhex(t, "12 01 62 0a 02 0061"),
	} {
		m := message{TunnelMessage: new(manager.TunnelMessage)}
		if err := (Codec{}).Unmarshal(cut(wire, 2), &m); err != nil {
			t.Fatal(err)
		}
		if m.code() != CodeNormal || string(body(&m)) != "a" {
			t.Errorf("%s: %q", name, body(&m))
		}
		out, err := Codec{}.Marshal(&m)
		if err != nil {
			t.Fatal(err)
		}
		var want, got manager.TunnelMessage
		if err := proto.Unmarshal(wire, &want); err != nil {
			t.Fatal(err)
		}
		if err := proto.Unmarshal(out.Materialize(), &got); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(&want, &got, protocmp.Transform()); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestCodecLeavesOtherMessagesAlone(t *testing.T) {
	t.Parallel()
	in := &manager.TunnelMetrics{ClientSessionId: "c", IngressBytes: 7}
	data, err := Codec{}.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var out manager.TunnelMetrics
	if err := (Codec{}).Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(in, &out, protocmp.Transform()); d != "" {
		t.Error(d)
	}
	if (Codec{}).Name() != "proto" {
		t.Error("the name is part of the content type")
	}
}

func FuzzCodec(f *testing.F) {
	f.Add(unhex(f, "0a 02 0061"), 1)
	f.Add(unhex(f, "0a 00"), 1)
	f.Add(unhex(f, "0a 8200 0061"), 3)
	f.Add(unhex(f, "0a 01 00 0a 01 03"), 2)
	f.Add([]byte{}, 1)
	f.Fuzz(func(t *testing.T, wire []byte, n int) {
		var want manager.TunnelMessage
		werr := proto.Unmarshal(wire, &want)
		m := message{TunnelMessage: new(manager.TunnelMessage)}
		err := Codec{}.Unmarshal(cut(wire, max(n, 1)), &m)
		if (err == nil) != (werr == nil) {
			t.Fatalf("%v, but proto says %v", err, werr)
		}
		if err != nil {
			return
		}
		if m.payloadLen() != len(want.GetPayload()) {
			t.Fatalf("%d bytes, want %d", m.payloadLen(), len(want.GetPayload()))
		}
		if m.payloadLen() > 0 && (m.code() != Code(want.GetPayload()[0]) || !bytes.Equal(body(&m), want.GetPayload()[1:])) {
			t.Fatal("different payload")
		}
	})
}
