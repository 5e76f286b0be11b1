package replica

import (
	"context"
	"errors"
	"testing"
)

// A transfer to a server that does not answer would stop the writes for as long
// as Raft's transport waits for it.
func TestTransferAsksTheTargetBefore(t *testing.T) {
	c := newTrio(t, nil)
	leader := c.leader(t)
	voters, err := leader.voters()
	if err != nil {
		t.Fatal(err)
	}
	var silent, other Voter
	for _, v := range voters {
		if v.ID != leader.ID() {
			silent, other = other, v
		}
	}
	answering := leader.Replica.cfg.AskTerm
	leader.Replica.cfg.AskTerm = func(ctx context.Context, v Voter) (uint64, error) {
		if v.ID == silent.ID {
			return 0, errors.New("it is cut off")
		}
		return answering(ctx, v)
	}
	term := leader.LeaderTerm()
	if err := leader.TransferLeadership(silent.ID, silent.Address); !errors.Is(err, ErrNoSuccessor) {
		t.Errorf("transfer to a silent server: %v, want ErrNoSuccessor", err)
	}
	if now := leader.LeaderTerm(); now != term {
		t.Fatalf("it leads term %d instead of %d after a transfer that was refused", now, term)
	}
	leader.write(t, "k", 3)
	if err := leader.TransferLeadership("", ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the one that answers leads", func() bool { return c.leader(t).ID() == other.ID })
}
