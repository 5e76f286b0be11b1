package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

var memberFaults = []kind{
	{name: "remove-and-add", targets: someServer, members: true, run: removeAndAdd},
	{name: "replace", targets: []string{follower}, members: true, run: replace},
}

// memberWithin bounds a change of the members, with all that it waits for.
const memberWithin = 20 * time.Second

// changesMembers says whether the servers can be told to change their number.
func (c *Cluster) changesMembers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	_, err := c.operator(0).RemovePeer(ctx, &operatorv1.RemovePeerRequest{Id: "nobody"})
	return errs.Code(err) != codes.Unimplemented
}

// id is the id of a server by what its peers say; empty: it is none of them.
func (c *Cluster) id(ctx context.Context, by int, s *Server) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	resp, err := c.operator(by).ListPeers(ctx, &operatorv1.ListPeersRequest{})
	if err != nil {
		return "", err
	}
	for _, p := range resp.GetPeers() {
		if p.GetAddress() == s.Address {
			return p.GetId(), nil
		}
	}
	return "", nil
}

// change asks another server than the target for a change of the members until
// it is made.
func (x *execution) change(ctx context.Context, what string, ask func(context.Context, operatorsvc.OperatorClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, memberWithin)
	defer cancel()
	by := x.c.others(x.target.Index)[0]
	return poll(ctx, what, func(ctx context.Context) error {
		actx, cancel := context.WithTimeout(ctx, memberWithin/2)
		defer cancel()
		return ask(actx, x.c.operator(by.Index))
	})
}

func (x *execution) add(ctx context.Context, replaces string) error {
	err := x.change(ctx, "add "+x.target.Name, func(ctx context.Context, c operatorsvc.OperatorClient) error {
		_, err := c.AddPeer(ctx, &operatorv1.AddPeerRequest{Address: x.target.Address, Replaces: replaces})
		return err
	})
	if err != nil {
		return err
	}
	id, err := x.c.id(ctx, x.c.others(x.target.Index)[0].Index, x.target)
	if err == nil && id == "" {
		err = fmt.Errorf("%s is no peer after it was added", x.target.Name)
	}
	x.happened("%s was added as %s", x.target.Name, id)
	return err
}

// removeAndAdd takes a server that runs out of the configuration and adds it
// again. Who was removed keeps silent from then on: it comes back empty, under
// another id.
func removeAndAdd(ctx context.Context, x *execution) error {
	by := x.c.others(x.target.Index)[0].Index
	id, err := x.c.id(ctx, by, x.target)
	if err != nil || id == "" {
		return errors.Join(err, fmt.Errorf("%s is not among the peers", x.target.Name))
	}
	err = x.change(ctx, "remove "+x.target.Name, func(ctx context.Context, c operatorsvc.OperatorClient) error {
		if _, err := c.RemovePeer(ctx, &operatorv1.RemovePeerRequest{Id: id}); err != nil && errs.Code(err) != codes.NotFound {
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	left, err := x.c.id(ctx, by, x.target)
	switch {
	case err != nil:
		return err
	case left != "":
		return fmt.Errorf("%s is still a peer after it was removed", x.target.Name)
	}
	x.happened("%s (%s) was removed", x.target.Name, id)
	if err := errors.Join(x.serve(ctx), x.killed(ctx, x.target), os.RemoveAll(x.target.dataDir())); err != nil {
		return err
	}
	return errors.Join(x.revive(x.target), x.add(ctx, ""))
}

// replace loses a server with its disk and puts an empty one in its place.
func replace(ctx context.Context, x *execution) error {
	by := x.c.others(x.target.Index)[0].Index
	old, err := x.c.id(ctx, by, x.target)
	if err != nil || old == "" {
		return errors.Join(err, fmt.Errorf("%s is not among the peers", x.target.Name))
	}
	if err := x.killed(ctx, x.target); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(x.target.dataDir()), x.serve(ctx), x.revive(x.target), x.add(ctx, old)); err != nil {
		return err
	}
	id, err := x.c.id(ctx, by, x.target)
	if err == nil && id == old {
		err = fmt.Errorf("%s came back as %s without its disk", x.target.Name, id)
	}
	return err
}

// transferStorm hands leadership around, so many times.
func transferStorm(ctx context.Context, x *execution) error {
	before := x.c.term(ctx)
	done := 0
	for range int(x.step.Size) {
		i := x.rnd.IntN(servers)
		tctx, cancel := context.WithTimeout(ctx, 3*askTime)
		_, err := x.c.operator(i).TransferLeadership(tctx, &operatorv1.TransferLeadershipRequest{})
		cancel()
		if err == nil {
			done++
		} else if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := x.rest(ctx, time.Duration(between(x.rnd, 50, 600))*time.Millisecond); err != nil {
			return err
		}
	}
	if err := x.serve(ctx); err != nil {
		return err
	}
	after := x.c.term(ctx)
	x.happened("%d transfers, terms %d to %d", done, before, after)
	if done == 0 || after <= before {
		return errors.Join(fmt.Errorf("%d of %d transfers were done, terms %d to %d", done, int(x.step.Size), before, after))
	}
	return nil
}
