package replica

import (
	"errors"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
)

// transport is Raft's, with another attempt for what decides an election.
//
// Raft keeps connections to a peer and notices only when it uses one that the
// peer's process has died since. It repeats what it replicates, but asks for a
// vote once: after the restart of one server the vote for the next leader would
// be lost, and the election with it.
type transport struct {
	*raft.NetworkTransport
}

// RequestVote implements raft.Transport.
func (t transport) RequestVote(
	id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse,
) error {
	return again(resp, func(resp *raft.RequestVoteResponse) error {
		return t.NetworkTransport.RequestVote(id, target, args, resp)
	})
}

// RequestPreVote implements raft.WithPreVote.
func (t transport) RequestPreVote(
	id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse,
) error {
	return again(resp, func(resp *raft.RequestPreVoteResponse) error {
		return t.NetworkTransport.RequestPreVote(id, target, args, resp)
	})
}

// TimeoutNow implements raft.Transport.
func (t transport) TimeoutNow(
	id raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse,
) error {
	return again(resp, func(resp *raft.TimeoutNowResponse) error {
		return t.NetworkTransport.TimeoutNow(id, target, args, resp)
	})
}

// againWithin is how soon a call has to have failed to be made again: a dead
// connection says so at once. Whoever is slow has had the chance of an election.
const againWithin = 500 * time.Millisecond

// again calls until the connection that was taken is one of a living peer:
// those kept may all be dead, the one after them is new. All of what is called
// so may arrive twice: the same candidate gets the same answer in a term.
//
// What ended the call cannot be told from its error, whose cause Raft's decoder
// hides; only that nobody listens can.
func again[R any](resp *R, call func(*R) error) error {
	began := time.Now()
	var err error
	for range transportPool + 1 {
		var r R
		if err = call(&r); err == nil {
			*resp = r
			return nil
		}
		if errors.Is(err, syscall.ECONNREFUSED) || time.Since(began) > againWithin {
			break
		}
	}
	return err
}
