package chaos

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/metadata"

	"trivet/cluster/engine"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
	"trivet/test/chaos/check"
)

const (
	// control is the number of the harness's own connections.
	control = -1
	// askTime bounds one question to a server.
	askTime = time.Second
	// lookEvery is the pause between two looks at something that gives no sign.
	lookEvery = 25 * time.Millisecond
)

// operator is the harness's own way to a server.
func (c *Cluster) operator(i int) operatorsvc.OperatorClient {
	return operatorsvc.NewOperatorClient(c.access.Operator(i, control))
}

func (c *Cluster) status(ctx context.Context, i int) (*operatorv1.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return c.operator(i).Status(ctx, &operatorv1.StatusRequest{})
}

// poll repeats f until it returns nil, or its last error when ctx ends; an error
// that only says that ctx has ended does not hide the one before it.
func poll(ctx context.Context, what string, f func(context.Context) error) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var last error
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		if last != nil && ctx.Err() != nil {
			err = last
		}
		last = err
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, err)
		}
	}
}

// leader finds the server that leads by its own word, in the newest term.
func (c *Cluster) leader(ctx context.Context) (index int, term uint64, err error) {
	err = poll(ctx, "find the leader", func(ctx context.Context) error {
		term = 0
		for i, s := range c.Servers {
			if !s.Running() {
				continue
			}
			st, err := c.status(ctx, i)
			if err == nil && st.GetLeader() == s.Name && st.GetTerm() > term {
				index, term = i, st.GetTerm()
			}
		}
		if term == 0 {
			return errors.New("no server says that it leads")
		}
		return nil
	})
	return index, term, err
}

// term is the newest that any server knows, 0 when none answers.
func (c *Cluster) term(ctx context.Context) (term uint64) {
	for i := range c.Servers {
		if st, err := c.status(ctx, i); err == nil {
			term = max(term, st.GetTerm())
		}
	}
	return term
}

// awaitWhole waits until all servers run, follow one leader, have what any of
// them had when it was called, and take writes; it returns how long that took.
// Before each look it calls first, unless that is nil.
func (c *Cluster) awaitWhole(ctx context.Context, first func(context.Context) error) (time.Duration, error) {
	began := time.Now()
	err := poll(ctx, "the servers did not become a whole", func(ctx context.Context) error {
		if first != nil {
			if err := first(ctx); err != nil {
				return err
			}
		}
		var leader string
		var revision uint64
		states := make([]*operatorv1.StatusResponse, len(c.Servers))
		for i, s := range c.Servers {
			if !s.Running() {
				return fmt.Errorf("%s does not run", s.Name)
			}
			st, err := c.status(ctx, i)
			switch {
			case err != nil:
				return fmt.Errorf("%s does not answer: %w", s.Name, err)
			case !st.GetReady() || st.GetLeader() == "":
				return fmt.Errorf("%s has no contact with a leader (term %d)", s.Name, st.GetTerm())
			case leader == "":
				leader = st.GetLeader()
			case leader != st.GetLeader():
				return fmt.Errorf("%s follows %s, another one %s", s.Name, st.GetLeader(), leader)
			}
			states[i] = st
			revision = max(revision, st.GetRevision())
		}
		for i := range c.Servers {
			if err := c.catchUp(ctx, i, revision); err != nil {
				return err
			}
		}
		return nil
	})
	return time.Since(began), err
}

// catchUp wants a server to take a write and to show a revision.
func (c *Cluster) catchUp(ctx context.Context, i int, revision uint64) error {
	wctx, cancel := context.WithTimeout(ctx, 3*askTime)
	defer cancel()
	req := &operatorv1.PutConfigRequest{Key: "probe-" + c.Servers[i].Name, Value: []byte(time.Now().String())}
	if _, err := c.operator(i).PutConfig(wctx, req); err != nil {
		return fmt.Errorf("write through %s: %w", c.Servers[i].Name, err)
	}
	st, err := c.status(ctx, i)
	if err != nil {
		return fmt.Errorf("%s does not answer any more: %w", c.Servers[i].Name, err)
	}
	if st.GetRevision() < revision {
		return fmt.Errorf("%s is at revision %d, behind %d", c.Servers[i].Name, st.GetRevision(), revision)
	}
	return nil
}

// quiet waits until all servers are at one revision, with no work going on.
func (c *Cluster) quiet(ctx context.Context) ([]check.State, error) {
	var states []check.State
	err := poll(ctx, "the servers did not come to the same revision", func(ctx context.Context) error {
		states = nil
		for i := range c.Servers {
			actx, cancel := context.WithTimeout(ctx, askTime)
			d, err := c.operator(i).Digest(actx, &operatorv1.DigestRequest{})
			cancel()
			if err != nil {
				return fmt.Errorf("ask %s for its digest: %w", c.Servers[i].Name, err)
			}
			states = append(states, check.State{
				Server: i, Revision: d.GetRevision(), Schema: d.GetSchema(), Digest: hex.EncodeToString(d.GetDigest()),
			})
		}
		for _, s := range states[1:] {
			if s.Revision != states[0].Revision {
				return fmt.Errorf("revisions %d and %d", states[0].Revision, s.Revision)
			}
		}
		return nil
	})
	return states, err
}

// dump reads everything that a server holds, by the first message of a watch.
func (c *Cluster) dump(ctx context.Context, i int, rows map[string]check.Row, ids map[string]bool) error {
	ctx, cancel := context.WithTimeout(ctx, 10*askTime)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, engine.MetaConsistency, "stale")
	stream, err := c.operator(i).Watch(ctx, &operatorv1.WatchRequest{})
	for err == nil {
		var resp *operatorv1.WatchResponse
		if resp, err = stream.Recv(); err != nil {
			break
		}
		for _, x := range resp.GetChanges() {
			switch x.GetTable() {
			case "config":
				rows[x.GetKey()] = check.Row{Value: string(x.GetConfig().GetValue()), Rev: x.GetConfig().GetModifyRevision()}
			case "intercepts", "sessions":
				ids[x.GetTable()+"/"+x.GetKey()] = true
			}
		}
		if resp.GetRevision() != 0 {
			return nil
		}
	}
	return fmt.Errorf("read the state of %s: %w", c.Servers[i].Name, err)
}
