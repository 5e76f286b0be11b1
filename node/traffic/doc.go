// Package traffic is the process of a node that carries traffic: it puts an
// agent beside each pod that the manager wants one for, and serves what they
// steal.
//
// It owns the tree of actors:
//
//	link       the manager's orders, the watch over its servers
//	workloads  follows the source of workloads
//	roster     starts and retires agents as orders and workloads demand; a pod
//	           that visitors reach through a listener of ours always has one
//	agents     one actor per pod (package agent)
//	tunnels    the stolen connections (package agent)
//
// and the heartbeat, which goes on for as long as connections are accepted. It
// does not own descriptors that must outlive it; those are the holder's, and
// are asked for (package handoff).
//
// Without a manager, and after a restart, the last orders hold (package link).
// At the end nothing is armed any more, the agents' sessions are given up, open
// connections have had ten seconds to end and those that are left are reset.
//
// Run is the only entry; everything it starts has ended when it returns.
package traffic
