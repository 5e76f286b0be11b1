package identity_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"trivet/internal/enroll"
	"trivet/internal/errs"
	"trivet/internal/pki"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// TestTokenRacedWhileTheLeaderDies: many ask all three servers with one token
// for one use, and the leader is stopped under them. Exactly one gets a
// certificate, and whoever the token was given to gets it, if need be by asking
// again.
func TestTokenRacedWhileTheLeaderDies(t *testing.T) {
	const rounds, racers = 3, 6
	r := newRig(t, 3, nil)
	for round := range rounds {
		leader := r.Leader()
		// Afresh: an older connection may still wait before it dials again.
		r.op = operatorsvc.NewOperatorClient(r.Conn(leader, pki.RoleOperator, "olga"))
		text := r.token(&operatorv1.CreateTokenRequest{Role: "node"})
		dirs := make([]string, racers)
		results := make(chan error, racers)
		start := make(chan struct{})
		for i := range racers {
			dirs[i] = filepath.Join(t.TempDir(), "b")
			server := r.Servers[i%3]
			go func() {
				<-start
				_, err := r.join(dirs[i], text, pki.RoleNode, fmt.Sprintf("n%d", i), server.Address, r.Servers[(i+1)%3].Address)
				results <- err
			}()
		}
		close(start)
		r.Stop(leader)
		won, lost := 0, 0
		for range racers {
			switch err := <-results; {
			case err == nil:
				won++
			case errs.Reason(err) == "TOKEN_USED":
				lost++
			default:
				t.Errorf("round %d: %v", round, err)
			}
		}
		if won != 1 || lost != racers-1 {
			t.Errorf("round %d: %d have a certificate and %d were told that the token is used; want 1 and %d", round, won, lost, racers-1)
		}
		r.Restart(leader)
		r.Leader()
	}
	r.SameDigests()
}

// TestWinnerAsksAgain: the token was taken for a key whose holder never heard
// of it; asking another server, after the leader's death, brings the
// certificate.
func TestWinnerAsksAgain(t *testing.T) {
	r := newRig(t, 3, nil)
	text := r.token(&operatorv1.CreateTokenRequest{Role: "node", NameGlob: "n1"})
	dir := filepath.Join(t.TempDir(), "b")
	leader := r.Leader()
	r.lostAnswer(dir, text, leader.Address)
	r.Stop(leader)
	var others []string
	for _, m := range r.Followers() {
		others = append(others, m.Address)
	}
	got, err := r.join(dir, text, "", "", others...)
	if err != nil || got.Bundle.ID.Name != "n1" {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := enroll.Join(r.ctx, filepath.Join(t.TempDir(), "c"), enroll.Request{Token: text, Servers: others}); errs.Reason(err) != "TOKEN_USED" {
		t.Errorf("somebody else: %v", err)
	}
}
