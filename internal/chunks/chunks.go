// Package chunks carries a stream of bytes in the messages of an rpc.
package chunks

import (
	"errors"
	"fmt"
	"io"
)

// Size is that of the parts in which streams travel, in bytes: large enough
// that a message costs little, small enough for every limit of a message.
const Size = 256 << 10

// Reader reads the messages that recv returns as one stream, which ends with
// its first error; io.EOF is its regular end.
func Reader(recv func() ([]byte, error)) io.Reader { return &reader{recv: recv} }

type reader struct {
	recv func() ([]byte, error)
	rest []byte
	err  error
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		r.rest, r.err = r.recv()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// Writer sends what is written to it in parts of at most Size, and ends with
// the first error of send. A receiver in the same process may keep a message,
// so that each is a copy.
func Writer(send func([]byte) error) io.Writer { return writer(send) }

type writer func([]byte) error

// Write implements io.Writer.
func (w writer) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := min(len(rest), Size)
		if err := w(append([]byte(nil), rest[:n]...)); err != nil {
			return len(p) - len(rest), err
		}
		rest = rest[n:]
	}
	return len(p), nil
}

// Copy sends all of in, in parts of Size. It ends with nil at the end of in and
// with the first error of send as it is, so that io.EOF is that of a stream
// which the other side has ended: its answer says why. An error of in is
// wrapped and never io.EOF.
func Copy(send func([]byte) error, in io.Reader) error {
	for {
		buf := make([]byte, Size)
		n, err := io.ReadFull(in, buf)
		if n > 0 {
			if err := send(buf[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil:
			return fmt.Errorf("read what is to be sent: %w", err)
		}
	}
}
