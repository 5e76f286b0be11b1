package devenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/client"
	"trivet/internal/errs"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// Operators asks each server of an environment by itself, as an operator, so
// that what one says can be compared with what another says.
type Operators struct {
	env *Env
	// Clients are in the order of Env.Servers.
	Clients []operatorsvc.OperatorClient
	pools   []*client.Pool
}

// Operators connects to every server. The caller must Close.
func (e *Env) Operators(ctx context.Context) (*Operators, error) {
	file, err := client.LoadFile(e.ContextFile)
	if err != nil {
		return nil, err
	}
	c, err := file.Get("dev-operator")
	if err != nil {
		return nil, err
	}
	o := &Operators{env: e}
	for _, address := range e.Addresses {
		c.Servers = []string{address}
		pool, err := client.Dial(ctx, c, client.Options{})
		if err != nil {
			o.Close()
			return nil, err
		}
		o.pools = append(o.pools, pool)
		o.Clients = append(o.Clients, operatorsvc.NewOperatorClient(pool))
	}
	return o, nil
}

// Close closes the connections.
func (o *Operators) Close() {
	for _, p := range o.pools {
		p.Close()
	}
}

// Leader is the leader's place among the servers.
func (o *Operators) Leader(ctx context.Context) (int, error) {
	for {
		for i, p := range o.env.Servers {
			if !p.Running() {
				continue
			}
			st, err := o.Clients[i].Status(ctx, &operatorv1.StatusRequest{})
			if errs.Code(err) == codes.Unavailable {
				continue // it is back, but the connection to it is not
			}
			if err != nil {
				return 0, fmt.Errorf("ask %s who leads: %w", p.Name, err)
			}
			for j, q := range o.env.Servers {
				if q.Name == st.GetLeader() && q.Running() {
					return j, nil
				}
			}
		}
		select {
		case <-time.After(readyPoll):
		case <-ctx.Done():
			return 0, fmt.Errorf("no server knows a leader: %w", ctx.Err())
		}
	}
}

// FirstWrite writes through all servers but one until the first write is
// acknowledged and returns when that was.
func (o *Operators) FirstWrite(ctx context.Context, dead int) (time.Time, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		at  time.Time
		err error
	}
	results := make(chan result, len(o.Clients))
	n := 0
	for i, op := range o.Clients {
		if i == dead || !o.env.Servers[i].Running() {
			continue
		}
		n++
		go func() {
			at, err := acknowledged(ctx, op)
			results <- result{at, err}
		}()
	}
	var first time.Time
	var errs []error
	for range n {
		r := <-results
		if r.err != nil {
			errs = append(errs, r.err)
		} else if first.IsZero() || r.at.Before(first) {
			first = r.at
			cancel()
		}
	}
	if first.IsZero() {
		return first, fmt.Errorf("no write was acknowledged: %w", errors.Join(errs...))
	}
	return first, nil
}

// probeValue has the size of the writes that the benches of other stores use.
var probeValue = bytes.Repeat([]byte("x"), 256)

func acknowledged(ctx context.Context, op operatorsvc.OperatorClient) (time.Time, error) {
	for {
		_, err := op.PutConfig(ctx, &operatorv1.PutConfigRequest{Key: "probe", Value: probeValue})
		if err == nil {
			return time.Now(), nil
		}
		if ctx.Err() != nil {
			return time.Time{}, err
		}
	}
}

// SameState waits until all running servers show one revision and returns it;
// an error if they then hold different states.
func (o *Operators) SameState(ctx context.Context) (revision uint64, err error) {
	for {
		same, rev, err := o.digests(ctx)
		if err != nil || same {
			return rev, err
		}
		select {
		case <-time.After(readyPoll):
		case <-ctx.Done():
			return 0, fmt.Errorf("the servers did not come to the same revision: %w", ctx.Err())
		}
	}
}

func (o *Operators) digests(ctx context.Context) (same bool, revision uint64, err error) {
	var first *operatorv1.DigestResponse
	for i, op := range o.Clients {
		if !o.env.Servers[i].Running() {
			continue
		}
		got, err := op.Digest(ctx, &operatorv1.DigestRequest{})
		if errs.Code(err) == codes.Unavailable {
			return false, 0, nil // it is back, but the connection to it is not
		}
		if err != nil {
			return false, 0, fmt.Errorf("ask %s for its digest: %w", o.env.Servers[i].Name, err)
		}
		switch {
		case first == nil:
			first = got
		case got.GetRevision() != first.GetRevision():
			return false, 0, nil
		case !bytes.Equal(got.GetDigest(), first.GetDigest()):
			return false, 0, fmt.Errorf("digests differ at revision %d: %s has %x, %s has %x", got.GetRevision(),
				first.GetServer(), first.GetDigest(), got.GetServer(), got.GetDigest())
		}
	}
	return true, first.GetRevision(), nil
}
