package agent

import (
	"context"
	"io"
	"net"
	"sync"
)

// toApp gives the connection to the app that it was meant for.
func (c *connection) toApp(ctx context.Context, why reason) (outcome, reason) {
	dialCtx, cancel := context.WithTimeout(ctx, appTimeout)
	app, err := c.pod.backend.DialApp(dialCtx, c.dst)
	cancel()
	c.let()
	if err != nil {
		// What the visitor would have seen without us.
		c.tunnels.cfg.Logger.Debug("app does not answer", "pod", c.pod.name, "address", c.dst, "err", err)
		reset(c.conn)
		if ctx.Err() != nil {
			return outReset, whyStopping
		}
		return outReset, whyNoApp
	}
	stop := context.AfterFunc(ctx, func() { reset(app) })
	defer stop()
	join(c.conn, app)
	return outApp, why
}

// join copies both ways until both ends have said that they are done, and
// closes both. The half close of one end is passed on; its reset resets the
// other, and so does the death of this process.
func join(a, b net.Conn) {
	setLinger(a, lingerReset)
	setLinger(b, lingerReset)
	var wg sync.WaitGroup
	wg.Go(func() { pump(b, a) })
	pump(a, b)
	wg.Wait()
	setLinger(a, lingerNone)
	setLinger(b, lingerNone)
	a.Close()
	b.Close()
}

// pump copies one way. TCP connections are spliced by the kernel.
func pump(dst, src net.Conn) {
	if _, err := io.Copy(dst, src); err != nil {
		reset(src)
		reset(dst)
		return
	}
	if w, ok := dst.(interface{ CloseWrite() error }); ok {
		// It fails when the other direction has reset dst, which is the end.
		_ = w.CloseWrite()
	}
}

// reset closes a connection so that its peer cannot take what it has received
// for all there is.
func reset(c net.Conn) {
	setLinger(c, lingerReset)
	_ = c.Close()
}

// What the kernel does when a connection is closed, by us or because this
// process has died.
const (
	lingerReset = 0  // resets it
	lingerNone  = -1 // sends what is left and ends it in order
)

// setLinger is for closes that are still to come.
func setLinger(c net.Conn, sec int) {
	if l, ok := c.(interface{ SetLinger(int) error }); ok {
		// It fails for a connection that is closed already.
		_ = l.SetLinger(sec)
	}
}
