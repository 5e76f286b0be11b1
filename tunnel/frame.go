package tunnel

import (
	"encoding/binary"
	"errors"
	"fmt"

	"trivet/proto/telepresence/manager"
)

// Version is the tunnel version that trivet announces in StreamInfo and
// StreamOK. Nothing branches on the version of a peer.
const Version = 2

// Code is the first byte of every payload.
type Code byte

// The codes of the contract.
const (
	// CodeNormal carries bytes of a TCP connection, or exactly one datagram.
	CodeNormal Code = 0
	// CodeStreamInfo is the opener's first message.
	CodeStreamInfo Code = 1
	// CodeStreamOK is the server's answer to StreamInfo.
	CodeStreamOK Code = 2
	// CodeCloseSend is the server's half close; the opener uses gRPC's.
	CodeCloseSend Code = 3
	// CodeDialOK says that the dialling end reached its target.
	CodeDialOK Code = 4
	// CodeDialReject says that it did not; the stream is over.
	CodeDialReject Code = 5
	// CodeDisconnect is a hard close; nothing follows it.
	CodeDisconnect Code = 6
	// CodeKeepAlive resets idle timers and means nothing else.
	CodeKeepAlive Code = 7
	// CodeSession is an agent's second message, the client's session id.
	CodeSession Code = 8
)

var codeNames = [...]string{
	"Normal", "StreamInfo", "StreamOK", "closeSend", "DialOK", "DialReject", "Disconnect", "KeepAlive", "Session",
}

// Known reports whether the contract defines c. Endpoints ignore and count
// unknown codes, a relay passes them on.
func (c Code) Known() bool { return int(c) < len(codeNames) }

// String returns the contract's name of c, or its number.
func (c Code) String() string {
	if c.Known() {
		return codeNames[c]
	}
	return fmt.Sprintf("code(%d)", byte(c))
}

// ErrEmptyPayload reports a message without a code.
var ErrEmptyPayload = errors.New("tunnel message without payload")

// Frame is a payload taken apart.
type Frame struct {
	// Code may be unknown, see Code.Known.
	Code Code
	// Body is what follows the code; it shares the payload's memory.
	Body []byte
}

// ParseFrame takes a payload apart. The only error is ErrEmptyPayload; bodies
// are judged by who uses them.
func ParseFrame(payload []byte) (Frame, error) {
	if len(payload) == 0 {
		return Frame{}, ErrEmptyPayload
	}
	return Frame{Code: Code(payload[0]), Body: payload[1:]}, nil
}

// newFrame makes the message of a code and a body, which is copied.
func newFrame(c Code, body []byte) *manager.TunnelMessage {
	p := make([]byte, 1+len(body))
	p[0] = byte(c)
	copy(p[1:], body)
	return &manager.TunnelMessage{Payload: p}
}

// NewNormal makes a Normal message with a copy of data.
func NewNormal(data []byte) *manager.TunnelMessage { return newFrame(CodeNormal, data) }

// NewStreamOK makes the answer to StreamInfo.
func NewStreamOK() *manager.TunnelMessage {
	return newFrame(CodeStreamOK, binary.AppendUvarint(nil, Version))
}

// NewCloseSend makes a server's half close.
func NewCloseSend() *manager.TunnelMessage { return newFrame(CodeCloseSend, nil) }

// NewDialOK makes the message that says that the target was reached.
func NewDialOK() *manager.TunnelMessage { return newFrame(CodeDialOK, nil) }

// NewDialReject makes the message that says that it was not.
func NewDialReject() *manager.TunnelMessage { return newFrame(CodeDialReject, nil) }

// NewDisconnect makes a hard close.
func NewDisconnect() *manager.TunnelMessage { return newFrame(CodeDisconnect, nil) }

// NewKeepAlive makes a message that only resets idle timers.
func NewKeepAlive() *manager.TunnelMessage { return newFrame(CodeKeepAlive, nil) }

// NewSession makes an agent's second message: the session id of the client
// that the connection belongs to.
func NewSession(clientSession string) *manager.TunnelMessage {
	return newFrame(CodeSession, []byte(clientSession))
}
