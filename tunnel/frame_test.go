package tunnel

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"trivet/proto/telepresence/manager"
)

// contractInfo is the example of the contract.
var contractInfo = StreamInfo{
	Version:          Version,
	RoundtripLatency: 2 * time.Second,
	DialTimeout:      3 * time.Second,
	ConnID:           mustConnID(TCP, "10.0.0.5:40000", "127.0.0.1:8080"),
	SessionID:        "agent:1111",
}

const contractInfoHex = "01 02 80a8d6b907 80bcc1960b 0d 0a000005 9c40 7f000001 1f90 06 0a 6167656e743a31313131"

func mustConnID(p Protocol, src, dst string) ConnID {
	id, err := NewConnID(p, netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst))
	if err != nil {
		panic(err)
	}
	return id
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestFramesHaveTheBytesOfTheContract(t *testing.T) {
	t.Parallel()
	info, err := NewStreamInfo(contractInfo)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		msg  *manager.TunnelMessage
		want string
	}{
		{"Normal", NewNormal([]byte("ab")), "00 6162"},
		{"empty Normal", NewNormal(nil), "00"},
		{"StreamInfo", info, contractInfoHex},
		{"StreamOK", NewStreamOK(), "02 02"},
		{"closeSend", NewCloseSend(), "03"},
		{"DialOK", NewDialOK(), "04"},
		{"DialReject", NewDialReject(), "05"},
		{"Disconnect", NewDisconnect(), "06"},
		{"KeepAlive", NewKeepAlive(), "07"},
		{"Session", NewSession("cli-1"), "08 636c692d31"},
	} {
		if want := unhex(t, c.want); !bytes.Equal(c.msg.GetPayload(), want) {
			t.Errorf("%s is % x, want % x", c.name, c.msg.GetPayload(), want)
		}
		f, err := ParseFrame(c.msg.GetPayload())
		if err != nil || !f.Code.Known() || !strings.HasSuffix(c.name, f.Code.String()) {
			t.Errorf("%s parses as %s, %v", c.name, f.Code, err)
		}
	}
}

func TestStreamInfoParses(t *testing.T) {
	t.Parallel()
	f, err := ParseFrame(unhex(t, contractInfoHex))
	if err != nil || f.Code != CodeStreamInfo {
		t.Fatalf("code %s, %v", f.Code, err)
	}
	got, err := ParseStreamInfo(f.Body)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(contractInfo, got); d != "" {
		t.Error(d)
	}
	// A later version may have more fields.
	if got, err = ParseStreamInfo(append(bytes.Clone(f.Body), 1, 2, 3)); err != nil || got != contractInfo {
		t.Errorf("with trailing bytes: %+v, %v", got, err)
	}
}

func TestStreamInfoWithIPv6StartsAsInTheContract(t *testing.T) {
	t.Parallel()
	si := contractInfo
	si.ConnID = mustConnID(TCP, "10.0.0.5:40000", "[fd00::1]:80")
	m, err := NewStreamInfo(si)
	if err != nil {
		t.Fatal(err)
	}
	if want := unhex(t, "01 02 80a8d6b907 80bcc1960b 25"); !bytes.HasPrefix(m.GetPayload(), want) {
		t.Errorf("starts % x, want % x", m.GetPayload()[:len(want)], want)
	}
	if got, err := ParseStreamInfo(m.GetPayload()[1:]); err != nil || got != si {
		t.Errorf("parses as %+v, %v", got, err)
	}
}

func TestStreamInfoRefusesEveryTruncation(t *testing.T) {
	t.Parallel()
	body := unhex(t, contractInfoHex)[1:]
	for n := range body {
		if si, err := ParseStreamInfo(body[:n]); err == nil {
			t.Errorf("%d of %d bytes parse as %+v", n, len(body), si)
		}
	}
}

func TestStreamInfoLimits(t *testing.T) {
	t.Parallel()
	const rest = "0d 0a000005 9c40 7f000001 1f90 06 01 61"
	// Ten bytes of varint are fine; what no Duration holds is the longest.
	si, err := ParseStreamInfo(unhex(t, "02 ffffffffffffffffff01 80808080808080808001"+rest))
	if err != nil || si.RoundtripLatency != math.MaxInt64 || si.DialTimeout != math.MaxInt64 {
		t.Errorf("largest numbers: %+v, %v", si, err)
	}
	if si, err = ParseStreamInfo(unhex(t, "02 00 00 0d 0a000005 9c40 7f000001 1f90 11 00")); err != nil ||
		si.SessionID != "" || si.ConnID.Protocol() != UDP {
		t.Errorf("empty session id: %+v, %v", si, err)
	}
	for name, in := range map[string]string{
		"eleven byte number":   "02 ffffffffffffffffffff01 00" + rest,
		"number of 65 bits":    "02 ffffffffffffffffff02 00" + rest,
		"12 byte id":           "02 00 00 0c 0a0000059c407f0000011f90 01 61",
		"36 byte id":           "02 00 00 24" + strings.Repeat("00", 36) + "01 61",
		"huge id":              "02 00 00 ffffffffffffffff7f 00",
		"id with ICMP":         "02 00 00 0d 0a0000059c407f0000011f9001 01 61",
		"session id too long":  "02 00 00 0d 0a0000059c407f0000011f9006 8108" + strings.Repeat("61", 1025),
		"session id not UTF-8": "02 00 00 0d 0a0000059c407f0000011f9006 01 ff",
	} {
		if si, err := ParseStreamInfo(unhex(t, in)); err == nil {
			t.Errorf("%s parses as %+v", name, si)
		}
	}
	for name, f := range map[string]func(*StreamInfo){
		"no id":            func(si *StreamInfo) { si.ConnID = "" },
		"no session":       func(si *StreamInfo) { si.SessionID = "" },
		"long session":     func(si *StreamInfo) { si.SessionID = strings.Repeat("x", MaxSessionID+1) },
		"negative latency": func(si *StreamInfo) { si.RoundtripLatency = -1 },
		"negative timeout": func(si *StreamInfo) { si.DialTimeout = -1 },
	} {
		si := contractInfo
		f(&si)
		if m, err := NewStreamInfo(si); err == nil {
			t.Errorf("%s encodes as % x", name, m.GetPayload())
		}
	}
}

func TestFrameWithoutCode(t *testing.T) {
	t.Parallel()
	if _, err := ParseFrame(nil); !errors.Is(err, ErrEmptyPayload) {
		t.Errorf("got %v", err)
	}
	f, err := ParseFrame([]byte{9, 1})
	if err != nil || f.Code.Known() || f.Code.String() != "code(9)" {
		t.Errorf("unknown code: %v %s, %v", f.Code.Known(), f.Code, err)
	}
}

func TestConnID(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		p        Protocol
		src, dst string
		size     int
		want     string
	}{
		{TCP, "10.0.0.5:40000", "127.0.0.1:8080", 13, "tcp 10.0.0.5:40000 -> 127.0.0.1:8080"},
		{UDP, "10.0.0.5:1", "10.0.0.6:65535", 13, "udp 10.0.0.5:1 -> 10.0.0.6:65535"},
		{TCP, "[fd00::5]:1", "[fd00::6]:2", 37, "tcp [fd00::5]:1 -> [fd00::6]:2"},
		{TCP, "10.0.0.5:1", "[fd00::6]:2", 37, "tcp 10.0.0.5:1 -> [fd00::6]:2"},
		{TCP, "[fd00::6]:2", "10.0.0.5:1", 37, "tcp [fd00::6]:2 -> 10.0.0.5:1"},
		{TCP, "[::ffff:10.0.0.5]:1", "10.0.0.6:2", 13, "tcp 10.0.0.5:1 -> 10.0.0.6:2"},
		{TCP, "[fe80::1%eth0]:1", "[fe80::2]:2", 37, "tcp [fe80::1]:1 -> [fe80::2]:2"},
	} {
		id := mustConnID(c.p, c.src, c.dst)
		if len(id) != c.size || id.String() != c.want || id.Protocol() != c.p || id.Validate() != nil {
			t.Errorf("%d bytes, %q, want %d, %q", len(id), id, c.size, c.want)
		}
		if back, err := ParseConnID(id.Bytes()); err != nil || back != id {
			t.Errorf("%q comes back as %q, %v", id, back, err)
		}
	}
	if got := mustConnID(TCP, "10.0.0.5:1", "[fd00::6]:2").Bytes(); !bytes.Equal(got,
		unhex(t, "00000000000000000000ffff0a000005 0001 fd000000000000000000000000000006 0002 06")) {
		t.Errorf("mixed families: % x", got)
	}
	for _, bad := range []ConnID{"", "x", ConnID(make([]byte, 12)), ConnID(make([]byte, 13)), ConnID(make([]byte, 38))} {
		if bad.Validate() == nil {
			t.Errorf("%x validates", string(bad))
		}
		if s := bad.String(); !strings.HasPrefix(s, "invalid") {
			t.Errorf("%x is %q", string(bad), s)
		}
		if len(bad) != 13 && (bad.Source().IsValid() || bad.Destination().IsValid()) {
			t.Errorf("%x has addresses", string(bad))
		}
		if _, err := ParseConnID([]byte(bad)); err == nil {
			t.Errorf("%x parses", string(bad))
		}
	}
	if _, err := NewConnID(TCP, netip.AddrPort{}, netip.MustParseAddrPort("1.1.1.1:1")); err == nil {
		t.Error("an id without a source")
	}
	if _, err := NewConnID(1, netip.MustParseAddrPort("1.1.1.1:1"), netip.MustParseAddrPort("1.1.1.1:1")); err == nil {
		t.Error("an id for ICMP")
	}
}

func FuzzParseFrame(f *testing.F) {
	f.Add(unhex(f, contractInfoHex))
	f.Add([]byte{2, 2})
	f.Add([]byte{8, 'c'})
	f.Add([]byte{})
	f.Add([]byte{0, 1})
	f.Add(append([]byte{1, 2, 0, 0, 37}, make([]byte, 40)...))
	f.Fuzz(func(t *testing.T, payload []byte) {
		fr, err := ParseFrame(payload)
		if (err != nil) != (len(payload) == 0) {
			t.Fatalf("error %v for %d bytes", err, len(payload))
		}
		switch fr.Code {
		case CodeStreamInfo:
			si, err := ParseStreamInfo(fr.Body)
			if err != nil || si.SessionID == "" {
				return
			}
			if err := si.ConnID.Validate(); err != nil {
				t.Fatal(err)
			}
			_ = si.ConnID.String()
			m, err := NewStreamInfo(si)
			if err != nil {
				t.Fatalf("parsed but does not encode: %v", err)
			}
			si.Version = Version
			if back, err := ParseStreamInfo(m.GetPayload()[1:]); err != nil || back != si {
				t.Fatalf("%+v comes back as %+v, %v", si, back, err)
			}
		case CodeStreamOK:
			_, _ = ParseStreamOK(fr.Body)
		case CodeSession:
			if s, err := ParseSession(fr.Body); err == nil && len(s) > MaxSessionID {
				t.Fatalf("session id of %d bytes", len(s))
			}
		}
	})
}
