package agent

import "trivet/proto/telepresence/manager"

// Msg is a message to an agent's actor.
type Msg interface{ isMsg() }

// attachResult is what became of attaching to the pod. The backend itself is in
// actor.fresh: a message may not arrive.
type attachResult struct{ err error }

// arrived: a server knows the agent's session, old or new.
type arrived struct{}

// snapshot is the complete set of intercepts of the workload.
type snapshot struct{ intercepts []*manager.InterceptInfo }

// reviewed: a review was sent, or was not.
type reviewed struct {
	intercept string
	err       error
}

// recheck looks at everything again.
type recheck struct{}

// reattach tries to attach again.
type reattach struct{}

// workerDone: a worker that has nothing to say has returned.
type workerDone struct{}

func (attachResult) isMsg() {}
func (arrived) isMsg()      {}
func (snapshot) isMsg()     {}
func (reviewed) isMsg()     {}
func (recheck) isMsg()      {}
func (reattach) isMsg()     {}
func (workerDone) isMsg()   {}
