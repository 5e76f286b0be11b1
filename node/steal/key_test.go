package steal

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestKeyEncoding(t *testing.T) {
	port := make([]byte, 2)
	binary.NativeEndian.PutUint16(port, 8080)
	tail := func(family byte) []byte { return append(append([]byte{}, port...), family, unix.IPPROTO_TCP) }
	v4, v6 := tail(unix.AF_INET), tail(unix.AF_INET6)
	ten := append([]byte{10, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, v4...)
	for _, tc := range []struct {
		addr string
		want []byte
	}{
		{"10.0.0.7", ten},
		{"::ffff:10.0.0.7", ten},
		{"0.0.0.0", append(make([]byte, 16), v4...)},
		{"::", append(make([]byte, 16), v6...)},
		{"::ffff:0.0.0.0", append(make([]byte, 16), v4...)},
		{"fd77::7", append([]byte{0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7}, v6...)},
		{"fe80::7%eth0", append([]byte{0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7}, v6...)},
	} {
		k, err := Key{Addr: netip.MustParseAddr(tc.addr), Port: 8080}.canonical()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tc.want, k.encode()); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tc.addr, diff)
		}
		back, err := decodeKey(k.encode())
		if err != nil || back != k {
			t.Errorf("%s: decoded as %v (%v), want %v", tc.addr, back, err, k)
		}
	}
}

func TestDecodeKeyRefusesNonsense(t *testing.T) {
	for _, b := range [][]byte{nil, make([]byte, keySize-1), make([]byte, keySize), make([]byte, keySize+1)} {
		if k, err := decodeKey(b); err == nil {
			t.Errorf("%v was decoded as %v", b, k)
		}
	}
}

func TestKeyString(t *testing.T) {
	for want, k := range map[string]Key{
		"tcp 10.0.0.7:80":         TCPKey(netip.MustParseAddrPort("10.0.0.7:80")),
		"tcp [::]:80":             AnyAddress(80)[1],
		"protocol 17 0.0.0.0:80":  {Addr: netip.IPv4Unspecified(), Port: 80, Protocol: 17},
		"tcp [::ffff:1.2.3.4]:80": {Addr: netip.MustParseAddr("::ffff:1.2.3.4"), Port: 80},
	} {
		if got := k.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestWildcardIsOfTheSameFamily(t *testing.T) {
	all := AnyAddress(80)
	for addr, want := range map[string]Key{"10.0.0.7": all[0], "fd77::7": all[1], "::": all[1]} {
		k := Key{Addr: netip.MustParseAddr(addr), Port: 80, Protocol: TCP}
		if got := k.wildcard(); got != want {
			t.Errorf("%s: %v, want %v", addr, got, want)
		}
	}
}

func FuzzKeyRoundTrip(f *testing.F) {
	f.Add([]byte{10, 0, 0, 7}, uint16(80))
	f.Add(make([]byte, 16), uint16(1))
	f.Fuzz(func(t *testing.T, addr []byte, port uint16) {
		a, _ := netip.AddrFromSlice(addr)
		k, err := Key{Addr: a, Port: port}.canonical()
		if err != nil {
			return
		}
		if back, err := decodeKey(k.encode()); err != nil || back != k {
			t.Errorf("%v came back as %v (%v)", k, back, err)
		}
	})
}
