package tunnel

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Protocol is an IP protocol number.
type Protocol uint8

// The protocols that a tunnel carries.
const (
	TCP Protocol = 6
	UDP Protocol = 17
)

// String returns "tcp" or "udp" (what net.Dial takes as network), else the
// number.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	}
	return fmt.Sprintf("protocol(%d)", uint8(p))
}

const (
	connIDLen4 = 4 + 2 + 4 + 2 + 1
	connIDLen6 = 16 + 2 + 16 + 2 + 1
)

// ConnID names a connection: source, destination and protocol, in the bytes of
// the contract (13 for IPv4; 37 if either side is IPv6, the other one mapped).
// It is comparable, so it can be a map key. The accessors return zero values
// for an id of any other length.
type ConnID string

// NewConnID makes the id of a connection from src to dst. IPv4-mapped addresses
// count as IPv4 and zones are dropped.
func NewConnID(p Protocol, src, dst netip.AddrPort) (ConnID, error) {
	if !src.IsValid() || !dst.IsValid() {
		return "", fmt.Errorf("connection id of %s -> %s: invalid address", src, dst)
	}
	if p != TCP && p != UDP {
		return "", fmt.Errorf("connection id of %s -> %s: %s is neither tcp nor udp", src, dst, p)
	}
	s, d := src.Addr().Unmap(), dst.Addr().Unmap()
	b := make([]byte, 0, connIDLen6)
	if s.Is4() && d.Is4() {
		s4, d4 := s.As4(), d.As4()
		b = append(b, s4[:]...)
		b = binary.BigEndian.AppendUint16(b, src.Port())
		b = append(b, d4[:]...)
		b = binary.BigEndian.AppendUint16(b, dst.Port())
	} else {
		s16, d16 := s.As16(), d.As16()
		b = append(b, s16[:]...)
		b = binary.BigEndian.AppendUint16(b, src.Port())
		b = append(b, d16[:]...)
		b = binary.BigEndian.AppendUint16(b, dst.Port())
	}
	return ConnID(append(b, byte(p))), nil
}

// ParseConnID copies and validates an id that came over the wire.
func ParseConnID(b []byte) (ConnID, error) {
	if len(b) != connIDLen4 && len(b) != connIDLen6 {
		return "", fmt.Errorf("connection id has %d bytes, want %d or %d", len(b), connIDLen4, connIDLen6)
	}
	id := ConnID(b)
	return id, id.Validate()
}

// Validate reports what is wrong with the id: its length or its protocol.
func (c ConnID) Validate() error {
	if len(c) != connIDLen4 && len(c) != connIDLen6 {
		return fmt.Errorf("connection id has %d bytes, want %d or %d", len(c), connIDLen4, connIDLen6)
	}
	if p := c.Protocol(); p != TCP && p != UDP {
		return fmt.Errorf("connection id: %s is neither tcp nor udp", p)
	}
	return nil
}

// Bytes returns a copy of the id as it travels.
func (c ConnID) Bytes() []byte { return []byte(c) }

// Protocol returns TCP or UDP.
func (c ConnID) Protocol() Protocol {
	if len(c) == 0 {
		return 0
	}
	return Protocol(c[len(c)-1])
}

// Source returns where the connection comes from, IPv4-mapped addresses as IPv4.
func (c ConnID) Source() netip.AddrPort { return c.addrPort(0) }

// Destination returns where it goes to, IPv4-mapped addresses as IPv4.
func (c ConnID) Destination() netip.AddrPort {
	switch len(c) {
	case connIDLen4:
		return c.addrPort(4 + 2)
	case connIDLen6:
		return c.addrPort(16 + 2)
	}
	return netip.AddrPort{}
}

// String returns for example "tcp 10.0.0.5:40000 -> 127.0.0.1:8080".
func (c ConnID) String() string {
	if err := c.Validate(); err != nil {
		return fmt.Sprintf("invalid connection id %x", string(c))
	}
	return fmt.Sprintf("%s %s -> %s", c.Protocol(), c.Source(), c.Destination())
}

func (c ConnID) addrPort(at int) netip.AddrPort {
	n := 4
	switch len(c) {
	case connIDLen4:
	case connIDLen6:
		n = 16
	default:
		return netip.AddrPort{}
	}
	// Both lengths are ones that AddrFromSlice takes.
	addr, _ := netip.AddrFromSlice([]byte(c[at : at+n]))
	port := binary.BigEndian.Uint16([]byte(c[at+n : at+n+2]))
	return netip.AddrPortFrom(addr.Unmap(), port)
}
