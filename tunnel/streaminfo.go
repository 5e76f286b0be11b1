package tunnel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	"trivet/proto/telepresence/manager"
)

// MaxSessionID is the longest session id that StreamInfo and Session may
// carry, in bytes; published peers use 36 or 42.
const MaxSessionID = 1024

// StreamInfo is what an opener says first.
type StreamInfo struct {
	// Version is the opener's tunnel version. Encoding it always sends
	// Version (the constant); decoding stores what the peer sent.
	Version uint64
	// RoundtripLatency and DialTimeout are the opener's expectations: a dial
	// may take the sum of both. Negative values do not travel; a received
	// value beyond what a Duration holds becomes the largest Duration.
	RoundtripLatency time.Duration
	DialTimeout      time.Duration
	// ConnID names the connection.
	ConnID ConnID
	// SessionID is the session of the opener, an agent's or a client's.
	SessionID string
}

// NewStreamInfo makes the message that opens a stream.
func NewStreamInfo(si StreamInfo) (*manager.TunnelMessage, error) {
	p, err := AppendStreamInfo([]byte{byte(CodeStreamInfo)}, si)
	if err != nil {
		return nil, err
	}
	return &manager.TunnelMessage{Payload: p}, nil
}

// AppendStreamInfo appends the body of a StreamInfo frame to b.
func AppendStreamInfo(b []byte, si StreamInfo) ([]byte, error) {
	if err := si.ConnID.Validate(); err != nil {
		return nil, fmt.Errorf("encode StreamInfo: %w", err)
	}
	if si.SessionID == "" {
		return nil, errors.New("encode StreamInfo: session id is empty")
	}
	if err := validateSession(si.SessionID); err != nil {
		return nil, fmt.Errorf("encode StreamInfo: %w", err)
	}
	if si.RoundtripLatency < 0 || si.DialTimeout < 0 {
		return nil, fmt.Errorf("encode StreamInfo: negative latency %s or dial timeout %s",
			si.RoundtripLatency, si.DialTimeout)
	}
	b = binary.AppendUvarint(b, Version)
	b = binary.AppendUvarint(b, uint64(si.RoundtripLatency))
	b = binary.AppendUvarint(b, uint64(si.DialTimeout))
	b = binary.AppendUvarint(b, uint64(len(si.ConnID)))
	b = append(b, si.ConnID...)
	b = binary.AppendUvarint(b, uint64(len(si.SessionID)))
	return append(b, si.SessionID...), nil
}

// ParseStreamInfo reads the body of a StreamInfo frame. Bytes after the last
// field are ignored: a later version may add some.
func ParseStreamInfo(body []byte) (StreamInfo, error) {
	d := decoder{b: body}
	si := StreamInfo{
		Version:          d.uvarint("version"),
		RoundtripLatency: d.duration("roundtrip latency"),
		DialTimeout:      d.duration("dial timeout"),
	}
	id := d.bytes("connection id", connIDLen6)
	session := d.bytes("session id", MaxSessionID)
	if d.err != nil {
		return StreamInfo{}, d.err
	}
	var err error
	if si.ConnID, err = ParseConnID(id); err != nil {
		return StreamInfo{}, err
	}
	si.SessionID = string(session)
	if err := validateSession(si.SessionID); err != nil {
		return StreamInfo{}, err
	}
	return si, nil
}

// ParseStreamOK reads the body of a StreamOK frame: the server's version.
func ParseStreamOK(body []byte) (uint64, error) {
	d := decoder{b: body}
	v := d.uvarint("version")
	return v, d.err
}

// ParseSession reads the body of a Session frame. As in StreamInfo the id may
// be empty: whether a session exists is for the caller to find out.
func ParseSession(body []byte) (string, error) {
	s := string(body)
	return s, validateSession(s)
}

func validateSession(s string) error {
	switch {
	case len(s) > MaxSessionID:
		return fmt.Errorf("session id has %d bytes, at most %d", len(s), MaxSessionID)
	case !utf8.ValidString(s):
		return errors.New("session id is not UTF-8")
	}
	return nil
}

// decoder reads fields until the first error, which it keeps.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) uvarint(field string) uint64 {
	if d.err != nil {
		return 0
	}
	v, n := binary.Uvarint(d.b)
	switch {
	case n == 0:
		d.err = fmt.Errorf("%s: truncated", field)
		return 0
	case n < 0:
		d.err = fmt.Errorf("%s: number does not fit 64 bits", field)
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) duration(field string) time.Duration {
	return time.Duration(min(d.uvarint(field), math.MaxInt64))
}

func (d *decoder) bytes(field string, limit int) []byte {
	n := d.uvarint(field)
	switch {
	case d.err != nil:
		return nil
	case n > uint64(limit):
		d.err = fmt.Errorf("%s has %d bytes, at most %d", field, n, limit)
		return nil
	case n > uint64(len(d.b)):
		d.err = fmt.Errorf("%s: truncated", field)
		return nil
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}
