// Package node is the node daemon: it steals the connections of intercepted
// workloads on this machine and sends them to the owners of the intercepts.
//
// It is two processes. Run is the holder (package holder): small, owner of
// every descriptor that has to outlive the other, and of the admin listener.
// It starts the traffic process, which is the same executable in the hidden
// role `node traffic`: RunTraffic (package traffic) with an agent per pod
// (package agent), the link to the manager (package link) and the source of
// workloads (package workload). They talk over a socket pair (package
// handoff). How connections are stolen is package steal's affair.
//
//	trivet node run ── holder: listeners, programs, links, heartbeat map, admin
//	   └─ node traffic ── agents, tunnels, orders; proves by package heart that it serves
//
// # Promises
//
//   - A new connection reaches the workload's own app a second after the
//     traffic process died or hung, at the latest; the process is replaced.
//   - Without a manager the node goes on with its last orders.
//   - Bytes of a visitor are read only once the other end is there; a stream
//     that breaks is reset, never ended.
//   - When Run returns, nothing is stolen and nothing listens any more.
//
// # Configuration
//
// Config is a YAML file (LoadConfig). SIGHUP makes the node read its workload
// file and its certificates again; the rest needs a restart.
package node
