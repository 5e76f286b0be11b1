package agent

import (
	"errors"
	"fmt"

	"trivet/node/steal"
	"trivet/node/workload"
)

// keysOf returns what to arm for a port of the pod: all its addresses where
// the namespace is the pod's alone, its own address where it shares the
// host's. A front carries the pod's address whatever the visitor dialled.
func keysOf(pod *workload.Pod, backend string, port uint16) []steal.Key {
	if pod.Net.Host || backend != steal.NameSkLookup {
		return []steal.Key{{Addr: pod.IP, Port: port, Protocol: steal.TCP}}
	}
	keys := steal.AnyAddress(port)
	return keys[:]
}

// arm arms a port.
func arm(pod *workload.Pod, b steal.Backend, port uint16) error {
	if b.Name() == steal.NameProxy && !hasFront(pod, port) {
		return fmt.Errorf("port %d has no address in front of it, and connections cannot be stolen here", port)
	}
	for _, k := range keysOf(pod, b.Name(), port) {
		err := b.Arm(k)
		if errors.Is(err, steal.ErrNoIPv6) && pod.IP.Is4() {
			continue // nobody reaches the pod that way
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// disarm disarms a port.
func disarm(pod *workload.Pod, b steal.Backend, port uint16) error {
	var problems []error
	for _, k := range keysOf(pod, b.Name(), port) {
		problems = append(problems, b.Disarm(k))
	}
	return errors.Join(problems...)
}

// disarmAll disarms whatever is armed, by a process before this one too.
func disarmAll(b steal.Backend) error {
	keys, err := b.ArmedKeys()
	problems := []error{err}
	for _, k := range keys {
		problems = append(problems, b.Disarm(k))
	}
	return errors.Join(problems...)
}

func hasFront(pod *workload.Pod, port uint16) bool {
	for _, c := range pod.Containers {
		for _, p := range c.Ports {
			if p.Number == port && p.Protocol == workload.TCP && p.Listen.IsValid() {
				return true
			}
		}
	}
	return false
}
