package steal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// MaxKeys is how many keys can be armed in one network namespace. The BPF
// program has the same number.
const MaxKeys = 256

// keySize is the size of struct key in the BPF program.
const keySize = 20

// Protocol is an IP protocol number.
type Protocol uint8

// TCP is the one protocol that can be stolen.
const TCP Protocol = unix.IPPROTO_TCP

// Key names connections to steal: those to one address and port, or to one
// port on any address of a family.
type Key struct {
	// Addr is the local address of the pod. 0.0.0.0 stands for every IPv4
	// address and :: for every IPv6 address; an exact key wins over such a
	// one. A v4-mapped address is its IPv4 address, a zone is ignored.
	Addr netip.Addr
	// Port is the port that visitors dial; not zero.
	Port uint16
	// Protocol is TCP; zero means TCP.
	Protocol Protocol
}

// TCPKey returns the key of one address and port.
func TCPKey(addr netip.AddrPort) Key {
	return Key{Addr: addr.Addr(), Port: addr.Port(), Protocol: TCP}
}

// AnyAddress returns the two keys of a port on all addresses, IPv4's first.
func AnyAddress(port uint16) [2]Key {
	return [2]Key{
		{Addr: netip.IPv4Unspecified(), Port: port, Protocol: TCP},
		{Addr: netip.IPv6Unspecified(), Port: port, Protocol: TCP},
	}
}

// String returns the key as in "tcp 10.0.0.7:80" or "tcp [::]:80".
func (k Key) String() string {
	proto := "tcp"
	if k.Protocol != 0 && k.Protocol != TCP {
		proto = fmt.Sprintf("protocol %d", k.Protocol)
	}
	return proto + " " + netip.AddrPortFrom(k.Addr, k.Port).String()
}

// canonical returns the one form that equal keys share.
func (k Key) canonical() (Key, error) {
	if k.Protocol == 0 {
		k.Protocol = TCP
	}
	k.Addr = k.Addr.Unmap().WithZone("")
	switch {
	case !k.Addr.IsValid():
		return Key{}, errors.New("key has no address")
	case k.Port == 0:
		return Key{}, fmt.Errorf("key %v has no port", k)
	case k.Protocol != TCP:
		return Key{}, fmt.Errorf("key %v: only TCP can be stolen", k)
	}
	return k, nil
}

// wildcard returns the key of any address that covers k.
func (k Key) wildcard() Key {
	any4 := k.Addr.Unmap().Is4()
	k.Addr = netip.IPv6Unspecified()
	if any4 {
		k.Addr = netip.IPv4Unspecified()
	}
	return k
}

// encode returns a canonical key as the BPF program has it: the address in
// network byte order, IPv4 in the first four of 16 bytes; the port in the
// machine's; family; protocol.
func (k Key) encode() []byte {
	b := make([]byte, keySize)
	family := byte(unix.AF_INET6)
	if k.Addr.Is4() {
		family = unix.AF_INET
	}
	copy(b, k.Addr.AsSlice())
	binary.NativeEndian.PutUint16(b[16:], k.Port)
	b[18], b[19] = family, byte(k.Protocol)
	return b
}

// decodeKey is the reverse of encode.
func decodeKey(b []byte) (Key, error) {
	if len(b) != keySize {
		return Key{}, fmt.Errorf("key of %d bytes, want %d", len(b), keySize)
	}
	k := Key{Port: binary.NativeEndian.Uint16(b[16:]), Protocol: Protocol(b[19])}
	switch b[18] {
	case unix.AF_INET:
		k.Addr = netip.AddrFrom4([4]byte(b[:4]))
	case unix.AF_INET6:
		k.Addr = netip.AddrFrom16([16]byte(b[:16]))
	default:
		return Key{}, fmt.Errorf("key of address family %d", b[18])
	}
	return k, nil
}
