package handoff

import (
	"encoding/json"

	"trivet/node/workload"
)

// Version of the conversation; both sides must have the same.
const Version = 1

// kind says which field of a message is set.
type kind string

const (
	kindHello    kind = "hello"
	kindWelcome  kind = "welcome"
	kindAttach   kind = "attach"
	kindAttached kind = "attached"
	kindDetach   kind = "detach"
	kindDetached kind = "detached"
	kindBeat     kind = "beat"
	kindStatus   kind = "status"
	kindMetrics  kind = "metrics"
)

// message is one packet.
type message struct {
	Kind kind `json:"kind"`
	// ID pairs a question with its answer.
	ID       uint64    `json:"id,omitempty"`
	Hello    *hello    `json:"hello,omitempty"`
	Welcome  *Welcome  `json:"welcome,omitempty"`
	Attach   *Request  `json:"attach,omitempty"`
	Attached *Attached `json:"attached,omitempty"`
	Detach   string    `json:"detach,omitempty"`
	Status   *Status   `json:"status,omitempty"`
	// Error answers a question that could not be met.
	Error string `json:"error,omitempty"`
}

type hello struct {
	Version int `json:"version"`
	PID     int `json:"pid"`
}

// Welcome is what a traffic process begins with.
type Welcome struct {
	Version int `json:"version"`
	// BootID names this life of the holder.
	BootID string `json:"bootId"`
	// Backend is the usual way of stealing, sk_lookup or proxy, and Reason
	// says why it is not the former.
	Backend string `json:"backend"`
	Reason  string `json:"reason,omitempty"`
	// Held are the UIDs of the pods that are attached already, for a traffic
	// process before this one. Nothing is armed in them.
	Held []string `json:"held,omitempty"`
	// SharedBeat says that a descriptor came along, of the map that the
	// heartbeat is written to; otherwise Client.Beat carries it.
	SharedBeat bool `json:"sharedBeat,omitempty"`
	// Settings are the node's own affair.
	Settings json.RawMessage `json:"settings"`
}

// Request asks for the attachment to a pod.
type Request struct {
	// UID is the pod's.
	UID string `json:"uid"`
	// Net is where its sockets are.
	Net workload.Net `json:"net"`
	// Fronts are addresses at which the pod can be served by listening in
	// front of it, where its network namespace is out of reach.
	Fronts []string `json:"fronts,omitempty"`
}

// Attached is the answer to a Request. Its descriptors are those of
// steal.Files for sk_lookup, and one listener per Request.Fronts for proxy.
type Attached struct {
	Backend string `json:"backend"`
}

// Status is how a traffic process is doing.
type Status struct {
	// Connected tells whether the manager gives orders.
	Connected bool `json:"connected"`
	// Agents is the number of pods with an agent.
	Agents int `json:"agents"`
}
