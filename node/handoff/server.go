package handoff

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// Handler is what the holder does for a traffic process. Calls come one at a
// time; while one runs, no other message is read.
type Handler interface {
	// Welcome returns what the process begins with, and the descriptor of the
	// shared heartbeat if there is one, which Serve closes.
	Welcome(pid int) (Welcome, *os.File, error)
	// Attach returns the descriptors of an attachment, which Serve closes.
	Attach(context.Context, Request) (Attached, []*os.File, error)
	// Detach ends an attachment; one that is not there is no error.
	Detach(uid string) error
	// Beat is called for a heartbeat that came as a message.
	Beat()
	// Status is called for a status.
	Status(Status)
}

// Server is the holder's side.
type Server struct{ conn *conn }

func newServer(c *conn) *Server { return &Server{conn: c} }

// Serve answers one traffic process until it is gone, which is no error, or
// until ctx ends.
func (s *Server) Serve(ctx context.Context, h Handler) error {
	stop := context.AfterFunc(ctx, func() { _ = s.conn.c.SetReadDeadline(time.Now()) })
	defer stop()
	for {
		m, files, err := s.conn.read()
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
				return nil
			}
			return err
		}
		closeAll(files) // nothing that comes this way carries any
		if err := s.answer(ctx, h, m); err != nil {
			return err
		}
	}
}

func (s *Server) answer(ctx context.Context, h Handler, m *message) error {
	switch m.Kind {
	case kindHello:
		return s.welcome(h, m)
	case kindAttach:
		if m.Attach == nil {
			return errors.New("traffic process asks for an attachment and does not say to what")
		}
		attached, files, err := h.Attach(ctx, *m.Attach)
		defer closeAll(files)
		reply := &message{Kind: kindAttached, ID: m.ID, Attached: &attached}
		if err != nil {
			reply.Error = err.Error()
		}
		return s.conn.write(reply, files)
	case kindDetach:
		reply := &message{Kind: kindDetached, ID: m.ID}
		if err := h.Detach(m.Detach); err != nil {
			reply.Error = err.Error()
		}
		return s.conn.write(reply, nil)
	case kindBeat:
		h.Beat()
	case kindStatus:
		if m.Status != nil {
			h.Status(*m.Status)
		}
	default:
		return fmt.Errorf("traffic process sent a message of unknown kind %q", m.Kind)
	}
	return nil
}

func (s *Server) welcome(h Handler, m *message) error {
	if m.Hello == nil || m.Hello.Version != Version {
		return fmt.Errorf("traffic process speaks another version than %d; was the program replaced? Restart the node", Version)
	}
	w, beat, err := h.Welcome(m.Hello.PID)
	if err != nil {
		return fmt.Errorf("welcome the traffic process: %w", err)
	}
	w.Version = Version
	var files []*os.File
	if beat != nil {
		w.SharedBeat = true
		files = append(files, beat)
		defer beat.Close()
	}
	return s.conn.write(&message{Kind: kindWelcome, Welcome: &w}, files)
}

// maxMetrics bounds what Metrics reads.
const maxMetrics = 16 << 20

// Metrics returns the metrics of the traffic process, in Prometheus's text
// form.
func (s *Server) Metrics(ctx context.Context) ([]byte, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("ask for metrics: %w", err)
	}
	defer r.Close()
	err = s.conn.write(&message{Kind: kindMetrics}, []*os.File{w})
	w.Close()
	if err != nil {
		return nil, err
	}
	// A process that hangs never closes its end.
	stop := context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Now()) })
	defer stop()
	data, err := io.ReadAll(io.LimitReader(r, maxMetrics))
	if err != nil {
		return nil, fmt.Errorf("wait for metrics: %w", errors.Join(ctx.Err(), err))
	}
	return data, nil
}

// Close ends the conversation; the other side sees it.
func (s *Server) Close() error { return s.conn.close() }
