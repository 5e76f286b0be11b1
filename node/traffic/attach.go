package traffic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"trivet/node/handoff"
	"trivet/node/steal"
	"trivet/node/workload"
)

// Attacher gets backends from the holder.
type Attacher struct{ Holder *handoff.Client }

// Attach returns the backend for a pod, which the caller closes. That does not
// end the attachment; Detach does.
func (a Attacher) Attach(ctx context.Context, pod *workload.Pod) (steal.Backend, error) {
	fronts := frontsOf(pod)
	req := handoff.Request{UID: pod.UID, Net: pod.Net}
	for _, f := range fronts {
		req.Fronts = append(req.Fronts, f.Listen.String())
	}
	attached, files, err := a.Holder.Attach(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("attach to pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	backend, err := open(attached.Backend, pod, fronts, files)
	if err != nil {
		return nil, fmt.Errorf("attach to pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return backend, nil
}

// Detach gives the pod back to its app.
func (a Attacher) Detach(ctx context.Context, uid string) error { return a.Holder.Detach(ctx, uid) }

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
func open(name string, pod *workload.Pod, fronts []workload.Port, files []*os.File) (steal.Backend, error) {
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
	return openProxy(pod, fronts, files)
}

func openProxy(pod *workload.Pod, fronts []workload.Port, files []*os.File) (steal.Backend, error) {
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
	p, err := steal.NewProxy(cfg)
	if err != nil {
		return fail(err)
	}
	return p, nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
