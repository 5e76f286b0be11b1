package demo

import (
	"context"
	"fmt"
	"time"

	operatorv1 "trivet/proto/trivet/operator/v1"
)

// afterFailover is how many new connections have to be answered by the local
// process after the failover before the load ends.
const afterFailover = 50

// killLeader kills the leader, to which the intercept's client is attached,
// under load.
func (d *demo) killLeader(ctx context.Context) (string, error) {
	leader, err := d.ops.Leader(ctx)
	if err != nil {
		return "", err
	}
	l := startLoad(d.env.URLs)
	if err := enough(ctx, l, time.Time{}); err != nil {
		l.stop()
		return "", err
	}
	killed := time.Now()
	if err := d.env.Servers[leader].Kill(); err != nil {
		l.stop()
		return "", err
	}
	acked, err := d.ops.FirstWrite(ctx, leader)
	if err != nil {
		l.stop()
		return "", err
	}
	d.report.LeaderFailoverMs = millis(acked.Sub(killed))
	err = enough(ctx, l, acked)
	late := d.account(l.stop(), killed, acked)
	if err != nil {
		return "", err
	}
	if late > 0 {
		return "", fmt.Errorf("%d requests that started after the new leader was there were not answered by the local process", late)
	}
	return fmt.Sprintf("%s was killed; first acknowledged write after %s; every connection started after that reached the local process",
		d.env.Servers[leader].Name, ms(d.report.LeaderFailoverMs)), nil
}

// enough waits until the load has had enough answers from the local process.
func enough(ctx context.Context, l *load, after time.Time) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for l.count(byLocal, after) < afterFailover {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("only %d of %d requests reached the local process: %w", l.count(byLocal, after), afterFailover, ctx.Err())
		}
	}
	return nil
}

// account counts the requests of a load around a kill and returns how many of
// those that started after the failover were not answered by the local process.
func (d *demo) account(all []request, killed, acked time.Time) (late int) {
	for _, r := range all {
		d.report.RequestsTotal++
		if r.err == nil && r.by == byLocal {
			continue
		}
		if r.start.Before(killed) && r.end.After(killed) {
			d.report.RequestsInFlightLost++
			continue
		}
		d.report.RequestsFailed++
		if r.start.After(acked) {
			late++
		}
	}
	return late
}

// stillThere asks both survivors.
func (d *demo) stillThere(ctx context.Context) (string, error) {
	id, n := "", 0
	for i, p := range d.env.Servers {
		if !p.Running() {
			continue
		}
		list, err := d.ops.Clients[i].ListIntercepts(ctx, &operatorv1.ListInterceptsRequest{})
		if err != nil {
			return "", err
		}
		if len(list.GetIntercepts()) != 1 || list.GetIntercepts()[0].GetDisposition() != "ACTIVE" {
			return "", fmt.Errorf("%s shows the intercepts %v, want one ACTIVE", p.Name, list.GetIntercepts())
		}
		got := list.GetIntercepts()[0].GetId()
		if id != "" && got != id {
			return "", fmt.Errorf("%s shows intercept %s, another server %s", p.Name, got, id)
		}
		id = got
		n++
	}
	detail, err := d.answeredBy(ctx, byLocal)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("same id and ACTIVE on %d servers; %s", n, detail), nil
}

// comeBack restarts the killed server and wants equal digests everywhere.
func (d *demo) comeBack(ctx context.Context) (string, error) {
	for i, p := range d.env.Servers {
		if p.Running() {
			continue
		}
		if err := p.Start(); err != nil {
			return "", err
		}
		if err := d.env.WaitReady(ctx, i); err != nil {
			return "", err
		}
	}
	rev, err := d.ops.SameState(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("all three hold the same state (digest equal at revision %d)", rev), nil
}
