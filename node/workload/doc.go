// Package workload knows what runs on this node: workloads, their pods, and of
// each pod the addresses, the network namespace, the containers, ports and
// environment.
//
// It owns where that knowledge comes from (a Source) and what makes it valid.
// It does not decide which pod gets an agent and touches no network namespace.
//
// The source here is a static file, for bare processes and namespaces. It is
// read again when it changes or when Reload is called; a file that is wrong by
// then is reported and counted, and the last good content stays.
//
// A Set and everything in it is immutable once made and may be shared between
// goroutines. File may be used from any goroutine; Run is its only loop and
// ends with its context.
//
//	src, err := workload.Open("workloads.yaml", "node-a", logger)
//	if err != nil {
//		return err
//	}
//	go src.Run(ctx)
//	set, changed := src.Get()
package workload
