package peersim

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
)

// Tunnel is one end of a tunnel, after the handshake. One goroutine may send
// while another receives.
type Tunnel struct {
	stream grpc.BidiStreamingClient[manager.TunnelMessage, manager.TunnelMessage]
	cancel context.CancelFunc
	// Peer is the version that the manager answered with.
	Peer []byte
}

// OpenTunnel opens a tunnel and waits for the answer. It ends with ctx or Close.
// An agent then names the client's session; a client leaves client empty.
func OpenTunnel(ctx context.Context, m managersvc.ManagerClient, info Info, client string) (*Tunnel, error) {
	ctx, cancel := context.WithCancel(ctx)
	t := &Tunnel{cancel: cancel}
	if err := t.open(ctx, m, info, client); err != nil {
		cancel()
		return nil, err
	}
	return t, nil
}

func (t *Tunnel) open(ctx context.Context, m managersvc.ManagerClient, info Info, client string) (err error) {
	if t.stream, err = m.Tunnel(ctx); err != nil {
		return err
	}
	if info.Version == 0 {
		info.Version = tunnelVersion
	}
	// What a Send misses because the stream is over, the status says.
	if err := t.Send(info.Frame()); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	answer, err := t.Recv()
	if err != nil {
		return err
	}
	if answer.Code != StreamOK {
		return fmt.Errorf("the first answer of the tunnel has code %d, not %d", answer.Code, StreamOK)
	}
	t.Peer = answer.Body
	if client == "" {
		return nil
	}
	return t.Send(Frame{Session, []byte(client)})
}

// Send sends a frame. After io.EOF the stream is over, and Recv says why.
func (t *Tunnel) Send(f Frame) error {
	return t.stream.Send(&manager.TunnelMessage{Payload: f.payload()})
}

// Write sends bytes of the connection.
func (t *Tunnel) Write(p []byte) (int, error) {
	if err := t.Send(Frame{Normal, p}); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Recv receives a frame; io.EOF after the last one.
func (t *Tunnel) Recv() (Frame, error) {
	msg, err := t.stream.Recv()
	if err != nil {
		return Frame{}, err
	}
	return parseFrame(msg.GetPayload())
}

// RecvData receives bytes of the connection, passing over frames that mean
// nothing to it; io.EOF when the other end has no more.
func (t *Tunnel) RecvData() ([]byte, error) {
	for {
		f, err := t.Recv()
		if err != nil {
			return nil, err
		}
		switch f.Code {
		case Normal:
			return f.Body, nil
		case CloseSend:
			return nil, io.EOF
		case Disconnect:
			return nil, errors.New("the tunnel was disconnected")
		case DialReject:
			return nil, errors.New("the dial was rejected")
		}
	}
}

// CloseSend says that no more data comes from here: an opener half closes.
func (t *Tunnel) CloseSend() error { return t.stream.CloseSend() }

// Close ends the tunnel.
func (t *Tunnel) Close() { t.cancel() }

// serve joins the tunnel with a local connection until either is over. Like the
// stock endpoint it closes the local connection fully when the tunnel's other
// end has no more data. It returns the bytes that came and went.
func (t *Tunnel) serve(local io.ReadWriteCloser) (in, out uint64, err error) {
	done := make(chan error, 1)
	var up uint64
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, err := local.Read(buf)
			if n > 0 {
				if _, werr := t.Write(buf[:n]); werr != nil {
					done <- werr
					return
				}
				up += uint64(n)
			}
			if err != nil {
				done <- t.CloseSend()
				return
			}
		}
	}()
	for {
		data, rerr := t.RecvData()
		if rerr != nil {
			if !errors.Is(rerr, io.EOF) {
				err = rerr
			}
			break
		}
		in += uint64(len(data))
		if _, werr := local.Write(data); werr != nil {
			break
		}
	}
	err = errors.Join(err, local.Close())
	if err != nil {
		t.Close() // a write that waits for the other end ends with it
	}
	<-done
	return in, up, err
}
