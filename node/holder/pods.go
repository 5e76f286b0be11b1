package holder

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sort"
	"sync"

	"trivet/internal/netns"
	"trivet/node/handoff"
	"trivet/node/steal"
	"trivet/node/workload"
)

// pods are the attachments, by the UID of the pod.
type pods struct {
	// beat is the shared heartbeat; nil where nothing can be stolen.
	beat *steal.Beat

	mu   sync.Mutex
	held map[string]*pod // guarded by mu
	past steal.Stats     // guarded by mu; of attachments that are closed
}

// pod is one attachment: to a network namespace, or listeners in front.
type pod struct {
	stolen *steal.Attachment
	fronts map[string]*net.TCPListener
}

// uids returns the pods that are held, sorted.
func (p *pods) uids() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for uid := range p.held {
		out = append(out, uid)
	}
	sort.Strings(out)
	return out
}

// attach returns the descriptors of the attachment that is held, if it is
// still the right one, or of a new one.
func (p *pods) attach(ctx context.Context, r handoff.Request) (handoff.Attached, []*os.File, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case r.UID == "":
		return handoff.Attached{}, nil, errors.New("attach: no pod is named")
	case p.beat != nil && r.Net.Known():
		files, err := p.steal(r)
		return handoff.Attached{Backend: steal.NameSkLookup}, files, err
	case len(r.Fronts) > 0:
		files, err := p.front(ctx, r)
		return handoff.Attached{Backend: steal.NameProxy}, files, err
	case p.beat == nil:
		return handoff.Attached{}, nil, errors.New("connections cannot be stolen on this node, " +
			"and the pod has no listen address in front of its ports")
	}
	return handoff.Attached{}, nil, errors.New("the pod's network namespace is not known, " +
		"and it has no listen address in front of its ports")
}

// steal is called with mu held.
func (p *pods) steal(r handoff.Request) ([]*os.File, error) {
	ns, err := openNet(r.Net)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	old := p.held[r.UID]
	if old == nil || old.stolen == nil || old.stolen.Namespace() != ns.ID() {
		if old != nil {
			// The pod was replaced by another one with the same UID.
			if err := p.drop(r.UID); err != nil {
				return nil, err
			}
		}
		a, err := steal.Attach(ns, p.beat, steal.Options{AllowHost: r.Net.Host})
		if err != nil {
			return nil, err
		}
		p.held[r.UID] = &pod{stolen: a}
	}
	files, err := p.held[r.UID].stolen.Files()
	if err != nil {
		return nil, err
	}
	return files.List(), nil
}

func openNet(n workload.Net) (*netns.Handle, error) {
	if n.Host {
		return netns.Current()
	}
	return netns.Open(n.Path)
}

// front is called with mu held.
func (p *pods) front(ctx context.Context, r handoff.Request) (files []*os.File, err error) {
	if len(r.Fronts) > handoff.MaxFiles {
		return nil, fmt.Errorf("pod has %d addresses in front of it, at most %d", len(r.Fronts), handoff.MaxFiles)
	}
	old := p.held[r.UID]
	if old != nil && old.fronts == nil {
		if err := p.drop(r.UID); err != nil {
			return nil, err
		}
		old = nil
	}
	next := map[string]*net.TCPListener{}
	defer func() {
		if err == nil {
			return
		}
		for addr, ln := range next {
			if old == nil || old.fronts[addr] != ln {
				ln.Close()
			}
		}
		for _, f := range files {
			f.Close()
		}
		files = nil
	}()
	for _, addr := range r.Fronts {
		ln := next[addr]
		if ln == nil && old != nil {
			ln = old.fronts[addr]
		}
		if ln == nil {
			if ln, err = listen(ctx, addr); err != nil {
				return files, err
			}
		}
		next[addr] = ln
		f, err := ln.File()
		if err != nil {
			return files, fmt.Errorf("hand over listener %s: %w", addr, err)
		}
		files = append(files, f)
	}
	if old != nil {
		for addr, ln := range old.fronts {
			if next[addr] == nil {
				ln.Close()
			}
		}
	}
	p.held[r.UID] = &pod{fronts: next}
	return files, nil
}

func listen(ctx context.Context, addr string) (*net.TCPListener, error) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	ln, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen in front of the app: %w", err)
	}
	return ln.(*net.TCPListener), nil
}

// disarm stops the stealing of new connections in all pods.
func (p *pods) disarm() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var problems []error
	for uid, held := range p.held {
		if held.stolen == nil {
			continue
		}
		if err := held.stolen.DisarmAll(); err != nil {
			problems = append(problems, fmt.Errorf("disarm pod %s: %w", uid, err))
		}
	}
	return errors.Join(problems...)
}

// detach gives a pod back to its app.
func (p *pods) detach(uid string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.drop(uid)
}

// drop is called with mu held.
func (p *pods) drop(uid string) error {
	held := p.held[uid]
	if held == nil {
		return nil
	}
	delete(p.held, uid)
	var problems []error
	if held.stolen != nil {
		if st, err := held.stolen.Stats(); err == nil {
			p.past = addStats(p.past, st)
		}
		problems = append(problems, held.stolen.Close())
	}
	for _, ln := range held.fronts {
		problems = append(problems, ln.Close())
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("detach pod %s: %w", uid, err)
	}
	return nil
}

// close gives all pods back.
func (p *pods) close() error {
	var problems []error
	for _, uid := range p.uids() {
		problems = append(problems, p.detach(uid))
	}
	return errors.Join(problems...)
}

// stats returns what became of connections, over all pods and all time.
func (p *pods) stats() steal.Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	sum := p.past
	for _, held := range p.held {
		if held.stolen == nil {
			continue
		}
		if st, err := held.stolen.Stats(); err == nil {
			sum = addStats(sum, st)
		}
	}
	return sum
}

// addStats adds the counters of the kernel.
func addStats(a, b steal.Stats) steal.Stats {
	a.Stolen += b.Stolen
	a.Self += b.Self
	a.Stale += b.Stale
	a.NoListener += b.NoListener
	a.AssignError += b.AssignError
	a.NotArmed += b.NotArmed
	return a
}
