package replica

import (
	"trivet/internal/fault"
	commandv1 "trivet/proto/trivet/command/v1"
)

// ackedEarly is the deliberate bug of builds that test the tests: it answers
// before anybody else has the entry. In all others it does nothing.
func (p *proposer) ackedEarly(batch *Batch) bool {
	if !fault.Planted(fault.AckBeforeCommit) {
		return false
	}
	p.finish(batch, make([]*commandv1.Result, batch.Commands), nil)
	return true
}
