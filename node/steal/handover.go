package steal

import (
	"fmt"
	"os"

	"github.com/cilium/ebpf/link"

	"trivet/internal/netns"
)

// Files returns a fresh set of descriptors for a traffic process. The caller
// closes them after they were sent.
func (a *Attachment) Files() (f Files, err error) {
	defer func() {
		if err != nil {
			f.Close()
			f = Files{}
			err = fmt.Errorf("hand over %v: %w", a.ns, err)
		}
	}()
	if f.Namespace, err = a.ns.File(); err != nil {
		return f, err
	}
	if f.Listener, err = listenerFile(a.listener); err != nil {
		return f, err
	}
	if f.Ports, err = a.ports.m.file(); err != nil {
		return f, err
	}
	if f.Beat, err = a.beat.File(); err != nil {
		return f, err
	}
	f.Stats, err = a.stats.file()
	return f, err
}

// Handover returns descriptors of everything, for Resume in the holder's next
// incarnation. The program stays attached as long as anybody has them.
func (a *Attachment) Handover() (Handover, error) {
	files, err := a.Files()
	if err != nil {
		return Handover{}, err
	}
	l, err := a.linkFile()
	if err != nil {
		files.Close()
		return Handover{}, fmt.Errorf("hand over %v: %w", a.ns, err)
	}
	return Handover{Files: files, Link: l}, nil
}

func (a *Attachment) linkFile() (*os.File, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch l := a.link.(type) {
	case nil:
		return nil, os.ErrClosed
	case interface{ FD() int }:
		return rawFile(l.FD(), "steal link")
	default:
		return nil, fmt.Errorf("link of kind %T has no descriptor", l)
	}
}

// Resume makes the Attachment again that Handover described. It owns the
// files, also when it fails.
func Resume(h Handover) (*Attachment, error) {
	a := &Attachment{}
	if err := a.resume(h); err != nil {
		h.Close()
		a.abandon()
		return nil, fmt.Errorf("resume attachment: %w", err)
	}
	return a, nil
}

func (a *Attachment) resume(h Handover) (err error) {
	if h.Namespace == nil {
		return os.ErrInvalid
	}
	if a.ns, err = netns.FromFile(h.Namespace); err != nil {
		return err
	}
	if a.listener, err = adoptListener(h.Listener); err != nil {
		return err
	}
	if a.ports.m, err = adoptPorts(h.Ports); err != nil {
		return err
	}
	if a.beat, err = AdoptBeat(h.Beat); err != nil {
		return err
	}
	if a.stats, err = adoptStats(h.Stats); err != nil {
		return err
	}
	fd, err := release(h.Link)
	if err != nil {
		return err
	}
	a.link, err = link.NewFromFD(fd)
	return err
}
