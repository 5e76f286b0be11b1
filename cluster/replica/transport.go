package replica

import (
	"errors"
	"io"
	"syscall"

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

// again calls until the connection that was taken is one of a living peer:
// those kept may all be dead, the one after them is new. All of what is called
// so may arrive twice: the same candidate gets the same answer in a term.
func again[R any](resp *R, call func(*R) error) error {
	var err error
	for range transportPool + 1 {
		var r R
		if err = call(&r); err == nil {
			*resp = r
			return nil
		}
		if !ended(err) {
			break
		}
	}
	return err
}

// ended tells whether the peer ended the connection, as opposed to a peer that
// does not answer, cannot be reached or refuses.
func ended(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
