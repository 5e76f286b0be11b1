package fsm

import (
	"slices"
	"strings"

	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

func (t *tx) arriveClient(op *commandv1.ArriveClient) *commandv1.Result {
	info := op.GetInfo()
	if res := checkClient(info); res != nil {
		return res
	}
	id := t.cmd.GetStampedId()
	switch {
	case id == "":
		return stampMissing()
	case strings.HasPrefix(id, agentPrefix):
		return invalid("client session id %q must not start with %q", id, agentPrefix)
	}
	if row, ok := t.work.sessions.get(id); ok {
		// Only a client that comes back under the id it had gets here.
		if row.GetKind() != commandv1.SessionKind_SESSION_KIND_CLIENT ||
			!t.mayActFor(row.GetIdentity()) {
			return notYours(id)
		}
		return withSession(row)
	}
	if t.since2() {
		if res := first(
			t.bounded("client information", info, maxClientBytes),
			tooLong("name", info.GetName(), "install ID", info.GetInstallId(), "product", info.GetProduct(), "version", info.GetVersion(),
				"namespace", info.GetNamespace()),
			t.sessionLimit(commandv1.SessionKind_SESSION_KIND_CLIENT, t.work.limits.GetSessionsPerIdentity(), ReasonLimitSessions, "sessionsPerIdentity"),
		); res != nil {
			return res
		}
	}
	row := &commandv1.SessionRow{
		Id:        id,
		Kind:      commandv1.SessionKind_SESSION_KIND_CLIENT,
		Identity:  t.cmd.GetIdentity(),
		Client:    info,
		Compat:    op.GetCompat(),
		CreatedAt: t.now(),
	}
	put(t, &t.work.sessions, row)
	return withSession(row)
}

func stampMissing() *commandv1.Result {
	return refuse(commandv1.Code_CODE_INTERNAL, ReasonStampMissing,
		"command carries no id for what it creates")
}

func checkClient(info *manager.ClientInfo) *commandv1.Result {
	switch {
	case info.GetName() == "":
		return invalid("name must not be empty")
	case info.GetInstallId() == "":
		return invalid("install ID must not be empty")
	case info.GetProduct() == "":
		return invalid("product must not be empty")
	case info.GetVersion() == "":
		return invalid("version must not be empty")
	}
	v, err := parseVersion(info.GetVersion())
	if err != nil {
		return invalid("%v", err)
	}
	if v.less(minClientVersion) {
		return invalid("client version must be at least 2.6.0")
	}
	return nil
}

// depart answers OK for a session that is not there: that is what its caller
// wants.
func (t *tx) depart(op *commandv1.Depart) *commandv1.Result {
	row, ok := t.work.sessions.get(op.GetSessionId())
	if !ok {
		return done()
	}
	if !t.mayActFor(row.GetIdentity()) {
		return notYours(row.GetId())
	}
	t.removeSession(row)
	return done()
}

func (t *tx) expireSessions(op *commandv1.ExpireSessions) *commandv1.Result {
	for _, item := range op.GetItems() {
		row, ok := t.work.sessions.get(item.GetSessionId())
		if ok && row.GetModifyRevision() == item.GetSeenModifyRevision() {
			t.removeSession(row)
		}
	}
	return done()
}

// removeSession removes a session and what cannot be without it.
func (t *tx) removeSession(row *commandv1.SessionRow) {
	for _, intercept := range slices.Collect(t.work.InterceptsOf(row.GetId())) {
		t.deleteIntercept(intercept)
	}
	drop(t, &t.work.sessions, row.GetId())
	if agent := row.GetAgent(); agent != nil {
		t.recheck(agent.GetNamespace(), agent.GetName(), row.GetId())
	}
}

// setGeneration records that a peer has shown itself as one of the older
// generation. The opposite is never concluded: a peer that keeps silent proves
// nothing.
func (t *tx) setGeneration(op *commandv1.SetGeneration) *commandv1.Result {
	row, ok := t.work.sessions.get(op.GetSessionId())
	if !ok {
		return refuse(commandv1.Code_CODE_NOT_FOUND, ReasonSessionNotFound,
			"Session %q not found", op.GetSessionId())
	}
	older := commandv1.Generation_GENERATION_OLDER
	if op.GetGeneration() == older && row.GetGeneration() != older {
		row = edit(row)
		row.Generation = older
		put(t, &t.work.sessions, row)
	}
	return withSession(row)
}

// clientSession returns a live client session that the caller may act for.
func (t *tx) clientSession(id string) (*commandv1.SessionRow, *commandv1.Result) {
	row, ok := t.work.sessions.get(id)
	if !ok || row.GetKind() != commandv1.SessionKind_SESSION_KIND_CLIENT {
		return nil, refuse(commandv1.Code_CODE_NOT_FOUND, ReasonSessionNotFound,
			"session %q not found", id)
	}
	if !t.mayActFor(row.GetIdentity()) {
		return nil, notYours(id)
	}
	return row, nil
}
