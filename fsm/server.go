package fsm

import (
	commandv1 "trivet/proto/trivet/command/v1"
)

// metaKey is the key of the meta row in events.
const metaKey = "meta"

// dedupeKeySize is the size of the key of the payload hashes.
const dedupeKeySize = 32

func (t *tx) initCluster(op *commandv1.InitCluster) *commandv1.Result {
	switch id := t.work.meta.GetClusterId(); {
	case op.GetClusterId() == "":
		return invalid("cluster id must not be empty")
	case len(op.GetDedupeKey()) != dedupeKeySize:
		return invalid("dedupe key must be %d bytes, not %d", dedupeKeySize, len(op.GetDedupeKey()))
	case id == op.GetClusterId():
		return done()
	case id != "":
		return refuse(commandv1.Code_CODE_FAILED_PRECONDITION, ReasonOtherCluster,
			"this is cluster %s, not %s", id, op.GetClusterId())
	}
	t.work.meta.ClusterId = op.GetClusterId()
	t.work.meta.DedupeKey = op.GetDedupeKey()
	t.events = append(t.events, Event{
		Revision: t.revision(), Table: TableMeta, Key: metaKey, Op: Put, New: edit(t.work.meta),
	})
	return done()
}

func (t *tx) putServer(op *commandv1.PutServer) *commandv1.Result {
	row := op.GetServer()
	switch {
	case row.GetId() == "":
		return invalid("server id must not be empty")
	case row.GetBootId() == "":
		return invalid("server boot id must not be empty")
	}
	if t.since2() {
		if res := first(t.bounded("server", row, maxServerBytes), tooLong("id", row.GetId(), "name", row.GetName(), "boot id", row.GetBootId())); res != nil {
			return res
		}
	}
	old, ok := t.work.servers.get(row.GetId())
	if want := op.IfModifyRevision; t.since2() && want != nil && *want != old.GetModifyRevision() {
		return hinted(refuse(commandv1.Code_CODE_ABORTED, ReasonConflict,
			"server %q was changed: modify revision is %d, not %d", row.GetId(), old.GetModifyRevision(), *want),
			"read the row again and repeat the registration on what it holds now")
	}
	if ok && old.GetBootId() == row.GetBootId() && old.GetVersion() == row.GetVersion() {
		t.record = recordNever // it has started before
	}
	switch {
	case !t.since2():
		t.forgetIncarnations([]string{row.GetId(), row.GetName()}, row.GetBootId())
	case ok && old.GetBootId() != row.GetBootId():
		t.retireProcess(old)
	}
	row = edit(row)
	put(t, &t.work.servers, row)
	return withServer(row)
}

// removeServer forgets a server that has left the Raft configuration.
func (t *tx) removeServer(op *commandv1.RemoveServer) *commandv1.Result {
	if role, _ := roleOf(t.cmd.GetIdentity()); role != roleServer {
		if res := t.operatorOnly("the servers of the cluster"); res != nil {
			return res
		}
	}
	row, ok := t.work.servers.get(op.GetId())
	if !ok {
		return done()
	}
	t.retireProcess(row)
	drop(t, &t.work.servers, op.GetId())
	return withServer(row)
}
