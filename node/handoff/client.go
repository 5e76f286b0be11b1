package handoff

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// ErrGone says that the holder is gone, so that nothing it owns can be had.
var ErrGone = errors.New("the holder is gone")

// welcomeTimeout is how long the holder may take to answer hello.
const welcomeTimeout = 10 * time.Second

// Client is the traffic process's side.
type Client struct {
	conn    *conn
	metrics func(io.Writer) error
	done    chan struct{}

	mu      sync.Mutex
	nextID  uint64                 // guarded by mu
	waiting map[uint64]chan answer // guarded by mu; nil when gone
}

type answer struct {
	m     *message
	files []*os.File
}

// Connect says hello over the socket, which it owns, and returns the holder's
// welcome and, if Welcome.SharedBeat, the descriptor of the heartbeat. metrics
// writes this process's metrics; it is called by Run.
func Connect(socket *os.File, metrics func(io.Writer) error) (*Client, Welcome, *os.File, error) {
	c, err := newConn(socket)
	if err != nil {
		return nil, Welcome{}, nil, err
	}
	w, beat, err := greet(c)
	if err != nil {
		c.close()
		return nil, Welcome{}, nil, err
	}
	return &Client{
		conn: c, metrics: metrics, done: make(chan struct{}), waiting: map[uint64]chan answer{},
	}, w, beat, nil
}

func greet(c *conn) (Welcome, *os.File, error) {
	if err := c.write(&message{Kind: kindHello, Hello: &hello{Version: Version, PID: os.Getpid()}}, nil); err != nil {
		return Welcome{}, nil, err
	}
	_ = c.c.SetReadDeadline(time.Now().Add(welcomeTimeout))
	m, files, err := c.read()
	_ = c.c.SetReadDeadline(time.Time{})
	switch {
	case errors.Is(err, io.EOF):
		return Welcome{}, nil, ErrGone
	case err != nil:
		return Welcome{}, nil, err
	case m.Kind != kindWelcome || m.Welcome == nil:
		err = fmt.Errorf("holder answered hello with %q", m.Kind)
	case m.Welcome.Version != Version:
		err = fmt.Errorf("holder speaks version %d, this process %d", m.Welcome.Version, Version)
	case m.Welcome.SharedBeat != (len(files) == 1):
		err = fmt.Errorf("holder sent %d descriptors in its welcome", len(files))
	}
	if err != nil {
		closeAll(files)
		return Welcome{}, nil, err
	}
	if len(files) == 0 {
		return *m.Welcome, nil, nil
	}
	return *m.Welcome, files[0], nil
}

// Run receives what the holder sends until it is gone, and returns what ended
// it, nil for the holder's end. It must run for Attach and Detach to work.
func (c *Client) Run() error {
	defer c.fail()
	for {
		m, files, err := c.conn.read()
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
		switch m.Kind {
		case kindAttached, kindDetached:
			c.deliver(m, files)
		case kindMetrics:
			c.report(files)
		default:
			closeAll(files)
		}
	}
}

// report writes the metrics into the pipe that came along. It is the only
// work done here, and short: a reader that does not read has a deadline.
func (c *Client) report(files []*os.File) {
	defer closeAll(files)
	if len(files) != 1 {
		return
	}
	_ = files[0].SetWriteDeadline(time.Now().Add(time.Second))
	// Who asked sees a short answer; there is nobody else to tell.
	_ = c.metrics(files[0])
}

func (c *Client) deliver(m *message, files []*os.File) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.waiting[m.ID]
	if w == nil {
		closeAll(files) // nobody waits any more
		return
	}
	delete(c.waiting, m.ID)
	w <- answer{m, files} // it has room for one, and one is all there is
}

// fail ends all waits.
func (c *Client) fail() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = nil
	close(c.done)
}

// ask sends a question and waits for the answer, whose files are the caller's.
func (c *Client) ask(ctx context.Context, m *message) (answer, error) {
	w := make(chan answer, 1)
	c.mu.Lock()
	if c.waiting == nil {
		c.mu.Unlock()
		return answer{}, ErrGone
	}
	c.nextID++
	m.ID = c.nextID
	c.waiting[m.ID] = w
	c.mu.Unlock()
	if err := c.conn.write(m, nil); err != nil {
		c.forget(m.ID, w)
		return answer{}, err
	}
	select {
	case a := <-w:
		if a.m.Error != "" {
			closeAll(a.files)
			return answer{}, errors.New(a.m.Error)
		}
		return a, nil
	case <-c.done:
		c.forget(m.ID, w)
		return answer{}, ErrGone
	case <-ctx.Done():
		c.forget(m.ID, w)
		return answer{}, ctx.Err()
	}
}

// forget takes a question back and closes what an answer has brought.
func (c *Client) forget(id uint64, w chan answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
	select {
	case a := <-w:
		closeAll(a.files)
	default:
	}
}

// Attach asks for the attachment to a pod. The descriptors are the caller's.
func (c *Client) Attach(ctx context.Context, r Request) (Attached, []*os.File, error) {
	a, err := c.ask(ctx, &message{Kind: kindAttach, Attach: &r})
	if err != nil {
		return Attached{}, nil, err
	}
	if a.m.Attached == nil {
		closeAll(a.files)
		return Attached{}, nil, errors.New("holder's answer names no attachment")
	}
	return *a.m.Attached, a.files, nil
}

// Detach gives an attachment up.
func (c *Client) Detach(ctx context.Context, uid string) error {
	_, err := c.ask(ctx, &message{Kind: kindDetach, Detach: uid})
	return err
}

// Beat sends a heartbeat.
func (c *Client) Beat() error { return c.conn.write(&message{Kind: kindBeat}, nil) }

// Status tells the holder how this process is doing.
func (c *Client) Status(s Status) error {
	return c.conn.write(&message{Kind: kindStatus, Status: &s}, nil)
}

// Done is closed when the holder is gone, or after Close.
func (c *Client) Done() <-chan struct{} { return c.done }

// Close ends the conversation.
func (c *Client) Close() error { return c.conn.close() }
