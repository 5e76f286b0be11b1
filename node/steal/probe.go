package steal

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"trivet/internal/netns"
)

// Probe tells whether this process can steal by sk_lookup on this machine, by
// attaching to a scratch namespace. It returns nil, *ErrUnsupported, or
// another error when it should have worked and did not. It takes some tens of
// milliseconds and remembers nothing.
func Probe() error {
	ns, err := netns.New()
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("probe: %w", &ErrUnsupported{Feature: "network namespaces", Err: err})
	}
	if err != nil {
		return fmt.Errorf("probe: %w", unsupported("network namespaces", err))
	}
	defer ns.Close()
	if err := features.HaveProgramType(ebpf.SkLookup); err != nil {
		return fmt.Errorf("probe: %w", unsupported("sk_lookup programs (Linux 5.9)", err))
	}
	beat, err := NewBeat()
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	defer beat.Close()
	a, err := Attach(ns, beat, Options{})
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	if err := a.Close(); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	return nil
}
