package bench

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	operatorv1 "trivet/proto/trivet/operator/v1"
)

func TestRequestsAreWhatTheServersExpect(t *testing.T) {
	value := bytes.Repeat([]byte{7}, valueSize)
	var put operatorv1.PutConfigRequest
	if err := proto.Unmarshal(encodePut("00000001", value), &put); err != nil {
		t.Fatal(err)
	}
	if put.GetKey() != "00000001" || !bytes.Equal(put.GetValue(), value) || put.IfModifyRevision != nil {
		t.Errorf("got %v", &put)
	}
	var get operatorv1.GetConfigRequest
	if err := proto.Unmarshal(encodeGet("k"), &get); err != nil || get.GetKey() != "k" {
		t.Errorf("got %v, %v", &get, err)
	}
	if got, want := encodeRange("k", true), append(encodeGet("k"), 7<<3, 1); !bytes.Equal(got, want) {
		t.Errorf("serializable range %x, want %x", got, want)
	}
	if got := encodeRange("k", false); !bytes.Equal(got, encodeGet("k")) {
		t.Errorf("linearizable range %x", got)
	}
}

func TestLeaderIsReadFromAStatus(t *testing.T) {
	status := func(member, leader uint64) []byte {
		header := protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), member)
		out := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), header)
		out = protowire.AppendString(protowire.AppendTag(out, 2, protowire.BytesType), "3.4.23")
		out = protowire.AppendFixed64(protowire.AppendTag(out, 30, protowire.Fixed64Type), 1)
		return protowire.AppendVarint(protowire.AppendTag(out, 4, protowire.VarintType), leader)
	}
	for name, c := range map[string]struct {
		answer []byte
		want   bool
	}{
		"leader": {status(9, 9), true}, "follower": {status(9, 8), false}, "no leader": {status(9, 0), false}, "empty": {nil, false},
	} {
		if got, err := decodeLeads(c.answer); got != c.want || err != nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if _, err := decodeLeads([]byte{0xff}); err == nil {
		t.Error("half a field was taken")
	}
}

func TestBytesPassThrough(t *testing.T) {
	in := []byte("abc")
	data, err := passthrough{}.Marshal(&in)
	if err != nil || string(data.Materialize()) != "abc" {
		t.Fatalf("%v, %v", data, err)
	}
	var out []byte
	if err := (passthrough{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(in)}, &out); err != nil || string(out) != "abc" {
		t.Errorf("%q, %v", out, err)
	}
	if err := (passthrough{}).Unmarshal(data, (*[]byte)(nil)); err != nil {
		t.Errorf("an answer that nobody wants: %v", err)
	}
	if _, err := (passthrough{}).Marshal("text"); err == nil {
		t.Error("something else than bytes was encoded")
	}
}
