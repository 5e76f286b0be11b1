package peersim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Code is the first byte of a tunnel message.
type Code byte

// The codes of the contract.
const (
	Normal     Code = 0
	StreamInfo Code = 1
	StreamOK   Code = 2
	CloseSend  Code = 3
	DialOK     Code = 4
	DialReject Code = 5
	Disconnect Code = 6
	KeepAlive  Code = 7
	Session    Code = 8
)

// tunnelVersion is what both generations say.
const tunnelVersion = 2

// Protocols of a connection.
const (
	TCP = 6
	UDP = 17
)

// Frame is one tunnel message.
type Frame struct {
	Code Code
	Body []byte
}

// payload is the frame as TunnelMessage carries it.
func (f Frame) payload() []byte { return append([]byte{byte(f.Code)}, f.Body...) }

func parseFrame(payload []byte) (Frame, error) {
	if len(payload) == 0 {
		return Frame{}, errors.New("a tunnel message without a code")
	}
	return Frame{Code: Code(payload[0]), Body: payload[1:]}, nil
}

// Info is what the opener of a tunnel says first.
type Info struct {
	Version              uint64
	Latency, DialTimeout time.Duration
	ConnID               []byte
	Session              string
}

// Frame writes the message.
func (i Info) Frame() Frame {
	b := binary.AppendUvarint(nil, i.Version)
	b = binary.AppendUvarint(b, uint64(i.Latency))
	b = binary.AppendUvarint(b, uint64(i.DialTimeout))
	b = binary.AppendUvarint(b, uint64(len(i.ConnID)))
	b = append(b, i.ConnID...)
	b = binary.AppendUvarint(b, uint64(len(i.Session)))
	return Frame{StreamInfo, append(b, i.Session...)}
}

// Conn is a connection as its id describes it.
type Conn struct {
	From, To netip.AddrPort
	Protocol byte
}

func (c Conn) String() string {
	name := map[byte]string{TCP: "tcp", UDP: "udp"}[c.Protocol]
	return fmt.Sprintf("%s %s -> %s", name, c.From, c.To)
}

// ID is the connection's id: 13 bytes if both addresses are IPv4, else 37.
func (c Conn) ID() []byte {
	from, to := c.From.Addr().Unmap(), c.To.Addr().Unmap()
	var b []byte
	put := func(ip netip.Addr, port uint16) {
		if from.Is4() && to.Is4() {
			v4 := ip.As4()
			b = append(b, v4[:]...)
		} else {
			v6 := ip.As16()
			b = append(b, v6[:]...)
		}
		b = binary.BigEndian.AppendUint16(b, port)
	}
	put(from, c.From.Port())
	put(to, c.To.Port())
	return append(b, c.Protocol)
}

// ParseConn reads a connection's id.
func ParseConn(id []byte) (Conn, error) {
	n := 0
	switch len(id) {
	case 13:
		n = 4
	case 37:
		n = 16
	default:
		return Conn{}, fmt.Errorf("a connection id of %d bytes, not 13 or 37", len(id))
	}
	end := func(b []byte) netip.AddrPort {
		ip, _ := netip.AddrFromSlice(b[:n]) // 4 or 16 bytes
		return netip.AddrPortFrom(ip.Unmap(), binary.BigEndian.Uint16(b[n:]))
	}
	return Conn{From: end(id), To: end(id[n+2:]), Protocol: id[len(id)-1]}, nil
}
