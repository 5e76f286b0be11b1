package identity

import (
	"context"
	"time"

	"trivet/cluster/engine"
	"trivet/fsm"
	"trivet/internal/enroll"
	"trivet/internal/errs"
	"trivet/internal/seal"
	commandv1 "trivet/proto/trivet/command/v1"
)

// reasonUpgrade is what the engine says of a command that not all servers know.
const reasonUpgrade = "UPGRADE_IN_PROGRESS"

const (
	// lookEvery is how often the leader looks whether keys have to be put into
	// the state or sealed anew, beside every change of the state.
	lookEvery = 5 * time.Second
	// lookSoon is that pause in a new cluster: nobody can enrol before.
	lookSoon = 100 * time.Millisecond
	// leaderTimeout bounds one such look.
	leaderTimeout = 30 * time.Second
)

// Run keeps this server's certificate from running out and does what is to be
// done with keys: every server writes what it learns to its data directory, the
// leader brings the issuing CA into a new cluster and seals what an older seal
// key has sealed anew. It ends with ctx.
func (a *Authority) Run(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		enroll.Keep(ctx, a.cfg.Source, a.SignOwn, a.cfg.Logger)
	}()
	defer func() { <-done }()
	root := a.cfg.Core.Root()
	cur := a.cfg.Core.WatchFrom(root)
	changed, look := true, true
	for {
		if changed {
			if err := a.keep(root); err != nil {
				a.cfg.Logger.Error("the cluster's keys could not be kept in the data directory", "err", err)
			}
		}
		if look && a.cfg.Leads() {
			a.lead(ctx, root)
		}
		tick := time.NewTimer(a.pause(root))
		select {
		case <-cur.Wait():
			b := cur.Next()
			root, changed = b.Root, b.Resync || b.Full || keysChanged(b.Events)
			// Most changes are of other things.
			look = changed || activeKey(root, KindIssuing) == nil
		case <-tick.C:
			root, changed, look = a.cfg.Core.Root(), false, true
		case <-ctx.Done():
			tick.Stop()
			return
		}
		tick.Stop()
	}
}

// pause is how long to wait before the next look if nothing changes.
func (a *Authority) pause(root *fsm.Root) time.Duration {
	if len(a.cfg.Issuing) > 0 && activeKey(root, KindIssuing) == nil && a.cfg.Leads() {
		return lookSoon
	}
	return lookEvery
}

func keysChanged(events []fsm.Event) bool {
	for _, e := range events {
		if _, ok := e.New.(*commandv1.KeyRow); ok {
			return true
		}
	}
	return false
}

// lead does the leader's part.
func (a *Authority) lead(ctx context.Context, root *fsm.Root) {
	if root.Meta().GetClusterId() == "" {
		return // its first command is on the way
	}
	ctx, cancel := context.WithTimeout(ctx, leaderTimeout)
	defer cancel()
	if activeKey(root, KindIssuing) == nil {
		switch err := a.bring(ctx); {
		case errs.Reason(err) == reasonUpgrade:
			// In a new cluster this only says that not all servers are up yet.
			a.cfg.Logger.Debug("the issuing CA is not in the state yet", "err", err)
		case err != nil:
			a.cfg.Logger.Warn("the issuing CA could not be brought into the state", "err", err, "hint", errs.From(err).Hint)
		}
		return
	}
	a.reseal(ctx, root)
}

// bring puts the issuing CA that came with the bundle into the state.
func (a *Authority) bring(ctx context.Context) error {
	if len(a.cfg.Issuing) == 0 {
		return nil
	}
	root, err := a.cfg.Core.Read(ctx, engine.Linearizable, 0)
	if err != nil || activeKey(root, KindIssuing) != nil {
		return err
	}
	i, err := decodeIssuing(a.cfg.Issuing)
	if err != nil {
		return err
	}
	ring := a.cfg.Sealer.Ring()
	ca, err := i.open(ring, a.cfg.Source.Bundle().RootPEM())
	if err != nil {
		return err
	}
	key, err := seal.KeyID(i.sealed)
	if err != nil {
		return err
	}
	cmd := &commandv1.KeyRow{
		Id: i.id, Kind: KindIssuing, Sealed: i.sealed, SealKeyId: key, Public: i.certificate, Active: true, NotAfter: ca.NotAfter().UnixNano(),
	}
	if _, err := a.putKey(ctx, "", cmd, new(uint64)); err != nil {
		return err
	}
	a.cfg.Logger.Info("the issuing CA is in the state", "id", i.id, "until", ca.NotAfter().UTC().Format(time.RFC3339))
	return nil
}

// reseal seals keys anew that an older seal key has sealed. Seal keys
// themselves stay as they are: each is sealed with the one before it.
func (a *Authority) reseal(ctx context.Context, root *fsm.Root) {
	ring := a.cfg.Sealer.Ring()
	for _, kind := range resealed {
		for _, row := range keyRows(root, kind) {
			if row.GetSealKeyId() == ring.Active() {
				continue
			}
			plain, err := ring.Open(row.GetId(), row.GetSealed())
			if err == nil {
				next := &commandv1.KeyRow{
					Id: row.GetId(), Kind: row.GetKind(), Sealed: ring.Seal(row.GetId(), plain), SealKeyId: ring.Active(),
					Public: row.GetPublic(), Active: row.GetActive(), NotAfter: row.GetNotAfter(), CreatedAt: row.GetCreatedAt(),
				}
				rev := row.GetModifyRevision()
				_, err = a.putKey(ctx, "", next, &rev)
			}
			if err != nil {
				a.cfg.Logger.Warn("a key could not be sealed anew", "id", row.GetId(), "err", err)
			}
		}
	}
}

// resealed are the kinds of keys whose rows follow the seal key in use.
var resealed = []string{KindIssuing, "ticket"}

// FollowDenied tells of every identity that is put on the deny-list from now
// on, until ctx ends. After a restore it tells of all that are on it.
func FollowDenied(ctx context.Context, core Core, denied func(uri, reason string)) {
	cur := core.WatchFrom(core.Root())
	for {
		select {
		case <-cur.Wait():
		case <-ctx.Done():
			return
		}
		b := cur.Next()
		if b.Resync || b.Full {
			for row := range b.Root.Identities {
				if row.GetDenied() {
					denied(row.GetUri(), row.GetReason())
				}
			}
			continue
		}
		for _, e := range b.Events {
			if row, ok := e.New.(*commandv1.IdentityRow); ok && row.GetDenied() {
				denied(row.GetUri(), row.GetReason())
			}
		}
	}
}
