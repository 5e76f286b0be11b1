package tunnel

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"

	"trivet/proto/telepresence/manager"
)

// abortGrace is how long a hard close waits for a peer: for its window to take
// the Disconnect frame, and for it to end the stream.
const abortGrace = 250 * time.Millisecond

// errSendClosed reports a send after the end of the sending side.
var errSendClosed = errors.New("sending side is closed")

// msgStream is what lies below the generated streams.
type msgStream interface {
	SendMsg(m any) error
	RecvMsg(m any) error
}

type sendState int

const (
	sendOpen sendState = iota
	sendHalfClosed
	sendClosed
)

// port is a Stream as the pumps use it: messages stay in the transport's
// buffers where they can, sends are serialised, and the two ways to half close
// look the same.
type port struct {
	stream Stream
	// raw is nil if all that is known of the stream is Send and Recv.
	raw msgStream
	// closer is set on the client side of gRPC, gone on the server side.
	closer  HalfCloser
	gone    <-chan struct{}
	aborter Aborter

	mu    sync.Mutex
	state sendState // guarded by mu
	// codec says whether the stream has our codec: known after the first send.
	codec      bool // guarded by mu
	codecKnown bool // guarded by mu
}

func newPort(s Stream, client bool) *port {
	p := &port{stream: s, raw: rawOf(s)}
	if client {
		p.closer, _ = s.(HalfCloser)
	} else if c, ok := s.(interface{ Context() context.Context }); ok {
		p.gone = c.Context().Done()
	}
	p.aborter, _ = s.(Aborter)
	return p
}

// rawOf returns what lies below s if Send and Recv of s are known to do no more
// than to call it.
func rawOf(s Stream) msgStream {
	if c, ok := s.(*ClientStream); ok {
		s = c.BidiStreamingClient
	}
	switch s := s.(type) {
	case *grpc.GenericServerStream[manager.TunnelMessage, manager.TunnelMessage]:
		return s.ServerStream
	case *grpc.GenericClientStream[manager.TunnelMessage, manager.TunnelMessage]:
		return s.ClientStream
	}
	return nil
}

// recv fills m, which must be empty. Only one goroutine may call it.
func (p *port) recv(m *message) (err error) {
	if p.raw == nil {
		m.TunnelMessage, err = p.stream.Recv()
		return err
	}
	if m.TunnelMessage == nil {
		m.TunnelMessage = new(manager.TunnelMessage)
	}
	return p.raw.RecvMsg(m)
}

// send sends m and releases it, also after an error.
func (p *port) send(m *message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sendLocked(m)
}

// sendLast is send for a frame that says that nothing follows it.
func (p *port) sendLast(m *message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.sendLocked(m)
	p.state = sendClosed
	return err
}

func (p *port) sendLocked(m *message) error {
	defer m.release()
	if p.state != sendOpen {
		return errSendClosed
	}
	if p.raw == nil || p.codecKnown && !p.codec {
		m.copyOut()
		return p.stream.Send(m.TunnelMessage)
	}
	if !p.codecKnown {
		// Complete for either codec; Marshal tells which one it was.
		m.copyOut()
	}
	m.passed = false
	err := p.raw.SendMsg(m)
	p.codec, p.codecKnown = m.passed, true
	return err
}

// closeSend half closes once.
func (p *port) closeSend() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state != sendOpen {
		return nil
	}
	p.state = sendHalfClosed
	if p.closer != nil {
		return p.closer.CloseSend()
	}
	return p.stream.Send(NewCloseSend())
}

// sendEnded reports whether this end has half closed.
func (p *port) sendEnded() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state != sendOpen
}

// disconnect tries to say that nothing follows and reports whether the stream
// took it, now or before. It never waits longer than abortGrace: a peer that
// takes nothing learns of the end by the end of the stream.
func (p *port) disconnect() bool {
	if !p.mu.TryLock() {
		return false // a send is stuck in front of it
	}
	switch {
	case p.state == sendClosed:
		p.mu.Unlock()
		return true
	case p.state == sendHalfClosed && p.closer != nil:
		p.mu.Unlock()
		return false
	}
	p.state = sendClosed
	sent := make(chan error, 1)
	go func() {
		defer p.mu.Unlock()
		sent <- p.stream.Send(NewDisconnect())
	}()
	grace := time.NewTimer(abortGrace)
	defer grace.Stop()
	select {
	case err := <-sent:
		return err == nil
	case <-grace.C:
		return false
	}
}

// abort ends the stream at once; the port must have an aborter. After that no
// call of the stream blocks.
func (p *port) abort() {
	p.aborter.Abort()
	// What disconnect may have left behind ends too.
	p.mu.Lock()
	p.state = sendClosed
	p.mu.Unlock()
}
