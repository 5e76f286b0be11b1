package portmux

import (
	"crypto/tls"
	"encoding/binary"
	"io"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
)

// Of HTTP/2 (RFC 9113) and HPACK (RFC 7541).
const (
	clientPreface    = 24 // bytes
	frameHeaderBytes = 9
	frameHeaders     = 0x1
	frameSettings    = 0x4
	frameGoAway      = 0x7
	flagEndStream    = 0x1
	flagEndHeaders   = 0x4
	hpackStatus200   = 0x88 // index 8 of the static table
)

// farewell rejects a connection whose handshake is done. A peer that speaks
// gRPC gets an answer to its first call that says why; one that makes no call
// within lingerTime gets nothing.
func (m *Mux) farewell(c *conn, tc *tls.Conn, reason Reason, code codes.Code, why string) {
	defer m.reject(c, reason, nil)
	if tc.ConnectionState().NegotiatedProtocol != alpnH2 || c.SetDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	// Who leaves before the answer needs none.
	if stream, err := firstCall(tc); err == nil {
		if _, err := tc.Write(refusal(stream, code, why)); err == nil && tc.CloseWrite() == nil {
			// As in refuse: the answer must not be lost to a reset.
			_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes)
		}
	}
}

// firstCall opens HTTP/2 and reads up to the peer's first request, whose
// stream it returns.
func firstCall(tc *tls.Conn) (stream uint32, err error) {
	if _, err := tc.Write(frame(nil, frameSettings, 0, 0, nil)); err != nil {
		return 0, err
	}
	in := io.LimitReader(tc, lingerBytes)
	if _, err := io.CopyN(io.Discard, in, clientPreface); err != nil {
		return 0, err
	}
	for {
		var head [frameHeaderBytes]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return 0, err
		}
		length := int64(head[0])<<16 | int64(head[1])<<8 | int64(head[2])
		if _, err := io.CopyN(io.Discard, in, length); err != nil {
			return 0, err
		}
		if head[3] == frameHeaders {
			return binary.BigEndian.Uint32(head[5:]) &^ (1 << 31), nil
		}
	}
}

// refusal answers a gRPC call with a status and ends the connection.
func refusal(stream uint32, code codes.Code, why string) []byte {
	fields := []byte{hpackStatus200}
	for _, f := range [][2]string{
		{"content-type", "application/grpc"}, {"grpc-status", strconv.Itoa(int(code))}, {"grpc-message", why},
	} {
		// Literals without indexing, not compressed; none is longer than 126 bytes.
		fields = append(fields, 0, byte(len(f[0])))
		fields = append(fields, f[0]...)
		fields = append(fields, byte(len(f[1])))
		fields = append(fields, f[1]...)
	}
	b := frame(nil, frameHeaders, flagEndStream|flagEndHeaders, stream, fields)
	// GOAWAY: the last stream that was looked at, and no error.
	end := binary.BigEndian.AppendUint32(nil, stream)
	return frame(b, frameGoAway, 0, 0, binary.BigEndian.AppendUint32(end, 0))
}

func frame(b []byte, kind, flags byte, stream uint32, payload []byte) []byte {
	n := len(payload)
	b = append(b, byte(n>>16), byte(n>>8), byte(n), kind, flags)
	return append(binary.BigEndian.AppendUint32(b, stream), payload...)
}
