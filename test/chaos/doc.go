// Package chaos disturbs a manager of three real server processes and proves
// that it keeps its promises. A Run starts the servers in network namespaces of
// their own, joined by a network in user space (internal/tunfwd), with their
// data on small memory disks; it lets clients work (package load) while faults
// of a seeded schedule come and go; and it judges what everybody saw (package
// check).
//
// A run is only clean when, beside that, every scheduled fault really happened
// (a process died, packets were dropped, the disk said no), when enough work was
// done in every phase, and when the cluster was whole and writable soon after
// each fault had ended. On a failure the directory stays: logs of the servers,
// schedule, history and verdict; the schedule can be replayed.
//
// The faults of disk and clock need a server that was built with the tag
// "chaos" (internal/fault).
//
// A Run needs root: it makes network namespaces, TUN devices and mounts. They
// go with it, also when it is killed, but for the mounts, which the next run
// removes.
package chaos
