package traffic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

	"trivet/node/handoff"
	"trivet/node/steal"
	"trivet/node/workload"
)

// Attacher gets backends from the holder.
type Attacher struct {
	holder *handoff.Client

	mu      sync.Mutex
	proxies map[*proxy]struct{} // guarded by mu
}

// NewAttacher makes an Attacher.
func NewAttacher(holder *handoff.Client) *Attacher {
	return &Attacher{holder: holder, proxies: map[*proxy]struct{}{}}
}

// Beat passes a heartbeat to the backends that do not read the shared one.
func (a *Attacher) Beat() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var problems []error
	for p := range a.proxies {
		problems = append(problems, p.Beat())
	}
	return errors.Join(problems...)
}

// proxy is a steal.Proxy that beats for as long as it is open.
type proxy struct {
	*steal.Proxy
	attacher *Attacher
}

// Close ends the use of the proxy.
func (p *proxy) Close() error {
	p.attacher.mu.Lock()
	delete(p.attacher.proxies, p)
	p.attacher.mu.Unlock()
	return p.Proxy.Close()
}

// Attach returns the backend for a pod, which the caller closes. That does not
// end the attachment; Detach does.
func (a *Attacher) Attach(ctx context.Context, pod *workload.Pod) (steal.Backend, error) {
	fronts := frontsOf(pod)
	req := handoff.Request{UID: pod.UID, Net: pod.Net}
	for _, f := range fronts {
		req.Fronts = append(req.Fronts, f.Listen.String())
	}
	attached, files, err := a.holder.Attach(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("attach to pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	backend, err := a.open(attached.Backend, pod, fronts, files)
	if err != nil {
		return nil, fmt.Errorf("attach to pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return backend, nil
}

// Detach gives the pod back to its app.
func (a *Attacher) Detach(ctx context.Context, uid string) error { return a.holder.Detach(ctx, uid) }

// frontsOf returns the ports of the pod that have an address in front.
func frontsOf(pod *workload.Pod) []workload.Port {
	var out []workload.Port
	for _, c := range pod.Containers {
		for _, p := range c.Ports {
			if p.Listen.IsValid() {
				out = append(out, p)
			}
		}
	}
	return out
}

// open makes the backend of its descriptors, which it owns.
func (a *Attacher) open(name string, pod *workload.Pod, fronts []workload.Port, files []*os.File) (steal.Backend, error) {
	if name == steal.NameSkLookup {
		set, err := steal.FilesFrom(files)
		if err != nil {
			closeFiles(files)
			return nil, err
		}
		w, err := steal.Adopt(set)
		if err != nil {
			return nil, err
		}
		return w, nil
	}
	defer closeFiles(files)
	if name != steal.NameProxy || len(files) != len(fronts) {
		return nil, fmt.Errorf("holder gave %d descriptors for %s, want one for each of %d addresses",
			len(files), name, len(fronts))
	}
	return a.openProxy(pod, fronts, files)
}

func (a *Attacher) openProxy(pod *workload.Pod, fronts []workload.Port, files []*os.File) (steal.Backend, error) {
	var cfg steal.ProxyConfig
	fail := func(err error) (steal.Backend, error) {
		for _, r := range cfg.Routes {
			r.Listener.Close()
		}
		return nil, err
	}
	for i, f := range files {
		ln, err := net.FileListener(f)
		if err != nil {
			return fail(fmt.Errorf("listener %s: %w", fronts[i].Listen, err))
		}
		tcp, ok := ln.(*net.TCPListener)
		if !ok {
			ln.Close()
			return fail(errors.New("descriptor is of no TCP listener"))
		}
		cfg.Routes = append(cfg.Routes, steal.Route{
			Listener: tcp, Original: netip.AddrPortFrom(pod.IP, fronts[i].Number), App: fronts[i].App,
		})
	}
	inner, err := steal.NewProxy(cfg)
	if err != nil {
		return fail(err)
	}
	p := &proxy{Proxy: inner, attacher: a}
	// The heart knows nothing against it yet; its next beat is a moment away.
	if err := p.Proxy.Beat(); err != nil {
		return nil, errors.Join(err, inner.Close())
	}
	a.mu.Lock()
	a.proxies[p] = struct{}{}
	a.mu.Unlock()
	return p, nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
