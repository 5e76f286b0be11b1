package replica

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// ErrNoSuccessor says that no server to hand leadership to has answered.
var ErrNoSuccessor = errors.New("no other voter answers")

// TransferLeadership hands leadership to the server with that id and address,
// or to the voter that answers first when id is empty.
//
// Raft takes no writes while it hands over, which with a target that does not
// answer lasts as long as its transport waits. So the target is asked before.
func (r *Replica) TransferLeadership(id, address string) error {
	if r.LeaderTerm() != 0 {
		v, err := r.successor(id)
		if err != nil {
			return fmt.Errorf("transfer leadership: %w", err)
		}
		if id == "" {
			id, address = v.ID, v.Address
		}
	}
	var f raft.Future
	if id == "" {
		f = r.raft.LeadershipTransfer()
	} else {
		f = r.raft.LeadershipTransferToServer(raft.ServerID(id), raft.ServerAddress(address))
	}
	if err := f.Error(); err != nil {
		return fmt.Errorf("transfer leadership: %w", err)
	}
	return nil
}

// successor is the first of the other voters that answers; only counts the one
// with that id, if it is not empty.
func (r *Replica) successor(only string) (Voter, error) {
	voters, err := r.voters()
	if err != nil {
		return Voter{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), confirmTimeout*time.Duration(r.cfg.Multiplier))
	type heard struct {
		from Voter
		err  error
	}
	answers, asked := make(chan heard, len(voters)), 0
	for _, v := range voters {
		if v.ID == r.ID() || only != "" && v.ID != only {
			continue
		}
		asked++
		go func() {
			_, err := r.cfg.AskTerm(ctx, v)
			answers <- heard{v, err}
		}()
	}
	// All askers are waited for: they end with ctx.
	defer func() {
		cancel()
		for ; asked > 0; asked-- {
			<-answers
		}
	}()
	var last error
	for asked > 0 {
		a := <-answers
		asked--
		if a.err == nil {
			return a.from, nil
		}
		last = a.err
	}
	return Voter{}, errors.Join(ErrNoSuccessor, last)
}
