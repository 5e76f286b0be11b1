package replica

// lastVoteTerm is where Raft keeps the term of its last vote, in the same store
// as its log.
var lastVoteTerm = []byte("LastVoteTerm")

// VoteTerm is the term in which this replica last gave its vote, to itself or
// to another; 0 if it never did. A vote that is being given is waited for.
func (r *Replica) VoteTerm() uint64 {
	// Raft's loop syncs a vote to disk before it does anything else. This
	// question passes through the loop; its answer is of no interest.
	_ = r.raft.VerifyLeader().Error()
	term, err := r.log.GetUint64(lastVoteTerm)
	if err != nil {
		return 0 // there is none yet
	}
	return term
}
