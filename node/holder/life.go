package holder

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"trivet/node/handoff"
)

// watchEvery is how often the heartbeat is looked at.
const watchEvery = 50 * time.Millisecond

// errHang says that a traffic process was killed for its silence.
var errHang = errors.New("it showed no heartbeat and was killed")

// life is one traffic process.
type life struct {
	holder *Holder
	cmd    *exec.Cmd
	server *handoff.Server
	began  time.Time

	exited chan error // capacity 1; what Wait returned
	served chan error // capacity 1; what Serve returned
}

// live starts a traffic process and watches it to its end. The error says how
// it ended, reason as which kind it counts.
func (h *Holder) live(ctx context.Context) (reason string, err error) {
	l, err := h.start()
	if err != nil {
		return restartStart, err
	}
	defer h.metrics.up.Set(0)
	defer h.removePID()
	defer h.setLife(nil)
	h.setLife(l)
	h.writePID(l.cmd.Process.Pid)
	h.cfg.Logger.Info("traffic process has started", "pid", l.cmd.Process.Pid)

	serveCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	go func() { l.served <- l.server.Serve(serveCtx, h) }()
	reason, err = l.watch(ctx)
	cancel()
	l.server.Close()
	<-l.served
	return reason, err
}

func (h *Holder) start() (*life, error) {
	server, socket, err := handoff.Pair()
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	cmd := h.cfg.Command()
	cmd.ExtraFiles = []*os.File{socket}
	// A group of its own: what a terminal sends to the foreground is for the
	// holder, which then tells the traffic process.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	l := &life{
		holder: h, cmd: cmd, server: server, began: time.Now(),
		exited: make(chan error, 1), served: make(chan error, 1),
	}
	if err := cmd.Start(); err != nil {
		server.Close()
		return nil, fmt.Errorf("start traffic process: %w", err)
	}
	go func() { l.exited <- cmd.Wait() }()
	return l, nil
}

// beats tells whether the process has shown a heartbeat that is not stale.
func (l *life) beats() bool {
	age, ok := l.holder.beatAge()
	return ok && age <= time.Since(l.began) && age <= l.holder.cfg.HangAfter
}

// watch returns when the process has ended, by itself, because it hung, or
// because ctx asked it to.
func (l *life) watch(ctx context.Context) (reason string, err error) {
	h := l.holder
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	var (
		done   = ctx.Done()
		limit  <-chan time.Time // of an orderly end
		beaten bool
		last   = time.Now()
	)
	for {
		select {
		case err := <-l.exited:
			return restartExit, exitError(err)
		case err := <-l.served:
			// Its descriptors are in order; what it says is not, or it is about
			// to end.
			l.served <- nil
			if err != nil {
				h.cfg.Logger.Error("traffic process does not keep to the protocol and is killed", "err", err)
				l.kill()
				return restartExit, errors.Join(err, exitError(<-l.exited))
			}
			return l.awaitExit()
		case <-done:
			done = nil
			h.cfg.Logger.Info("traffic process is asked to end", "pid", l.cmd.Process.Pid)
			_ = l.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
			timer := time.NewTimer(h.cfg.Drain)
			defer timer.Stop()
			limit = timer.C
		case <-limit:
			h.cfg.Logger.Error("traffic process does not end and is killed", "after", h.cfg.Drain)
			l.kill()
			return restartExit, exitError(<-l.exited)
		case <-tick.C:
			now := time.Now()
			pause := now.Sub(last)
			last = now
			if l.beats() {
				if !beaten {
					beaten = true
					h.metrics.up.Set(1)
				}
				continue
			}
			// Who was not running itself cannot say that the other was not.
			if pause > h.cfg.HangAfter/2 || (!beaten && time.Since(l.began) < h.cfg.StartWithin) {
				continue
			}
			h.cfg.Logger.Error("traffic process shows no heartbeat and is killed", "pid", l.cmd.Process.Pid)
			l.kill()
			return restartHang, errors.Join(errHang, exitError(<-l.exited))
		}
	}
}

// awaitExit waits for a process that has closed its socket.
func (l *life) awaitExit() (string, error) {
	timer := time.NewTimer(l.holder.cfg.HangAfter)
	defer timer.Stop()
	select {
	case err := <-l.exited:
		return restartExit, exitError(err)
	case <-timer.C:
		l.kill()
		return restartExit, errors.Join(errors.New("it closed its socket and did not end"), exitError(<-l.exited))
	}
}

// kill ends the process at once. It reaches one that is stopped, too.
func (l *life) kill() { _ = l.cmd.Process.Kill() }

// exitError says how a process ended, also when it was with status 0: it was
// not asked to.
func exitError(err error) error {
	if err == nil {
		return errors.New("it ended by itself")
	}
	return err
}
