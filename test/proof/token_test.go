package proof

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"trivet/client"
	"trivet/cmd/trivet/devenv"
	"trivet/internal/enroll"
	"trivet/internal/errs"
	"trivet/internal/pki"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

const (
	tokenRounds = 15
	// racers ask at once with one token, each with a key of its own and each
	// beginning with another server.
	racers = 9
)

// TestTokenRace gives one token for one use to many, who ask all three servers
// at once, and kills the leader's process under them. Exactly one gets a
// certificate, and it works on every server.
func TestTokenRace(t *testing.T) {
	if os.Getenv("TRIVET_PROOF") != "1" {
		t.Skip("SKIP reason: a long proof, run by make proof (TRIVET_PROOF=1)")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	env, err := devenv.Start(ctx, devenv.Options{Dir: t.TempDir(), Servers: 3, Exe: os.Getenv("TRIVET_BIN")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := env.Close(); err != nil {
			t.Error(err)
		}
	}()
	ops, err := env.Operators(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer ops.Close()
	for n := range tokenRounds {
		ok := t.Run(fmt.Sprintf("round %d", n+1), func(t *testing.T) { tokenRound(ctx, t, env, ops, n) })
		if !ok {
			break
		}
	}
}

// tokenRound is one race. The leader is killed a little later in each round, so
// that it dies before, while and after the token is consumed.
func tokenRound(ctx context.Context, t *testing.T, env *devenv.Env, ops *devenv.Operators, n int) {
	leader, err := ops.Leader(ctx)
	if err != nil {
		t.Fatal(err)
	}
	created, err := ops.Clients[leader].CreateToken(ctx, &operatorv1.CreateTokenRequest{Role: string(pki.RoleViewer)})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	type result struct {
		racer int
		err   error
	}
	results := make(chan result, racers)
	start := make(chan struct{})
	for i := range racers {
		servers := append(append([]string{}, env.Addresses[i%3:]...), env.Addresses[:i%3]...)
		go func() {
			<-start
			_, err := enroll.Join(ctx, filepath.Join(dir, fmt.Sprint(i)), enroll.Request{
				Token: created.GetSecret(), Name: fmt.Sprintf("racer-%d", i), Servers: servers,
			})
			results <- result{i, err}
		}()
	}
	killer := time.NewTimer(time.Duration(n) * 2 * time.Millisecond)
	close(start)
	<-killer.C
	if err := env.Servers[leader].Kill(); err != nil {
		t.Fatal(err)
	}
	winners := []int{}
	for range racers {
		switch r := <-results; {
		case r.err == nil:
			winners = append(winners, r.racer)
		case errs.Reason(r.err) != "TOKEN_USED":
			t.Errorf("racer %d: %v", r.racer, r.err)
		}
	}
	if len(winners) != 1 {
		t.Errorf("%d of %d have a certificate: %v", len(winners), racers, winners)
	}
	if err := env.Servers[leader].Start(); err != nil {
		t.Fatal(err)
	}
	if err := env.WaitReady(ctx, leader); err != nil {
		t.Fatal(err)
	}
	for _, i := range winners {
		works(ctx, t, env, filepath.Join(dir, fmt.Sprint(i)))
	}
	if _, err := ops.SameState(ctx); err != nil {
		t.Error(err)
	}
}

// works asks each server with a certificate.
func works(ctx context.Context, t *testing.T, env *devenv.Env, bundle string) {
	t.Helper()
	for _, address := range env.Addresses {
		pool, err := client.Dial(ctx, client.Context{Name: "winner", Servers: []string{address}, Bundle: bundle}, client.Options{})
		if err != nil {
			t.Errorf("the winner's certificate at %s: %v", address, err)
			continue
		}
		if _, err := operatorsvc.NewOperatorClient(pool).ListNodes(ctx, new(operatorv1.ListNodesRequest)); err != nil {
			t.Errorf("the winner's certificate at %s: %v", address, err)
		}
		pool.Close()
	}
}
