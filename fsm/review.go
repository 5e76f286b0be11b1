package fsm

import (
	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

// reviewIntercept records an agent's verdict on an intercept that waits for
// one. The first verdict counts; later ones, and those of agents that have no
// say, are answered OK and change nothing.
func (t *tx) reviewIntercept(op *commandv1.ReviewIntercept) *commandv1.Result {
	review := op.GetReview()
	session, ok := t.work.sessions.get(review.GetSession().GetSessionId())
	if !ok || session.GetKind() != commandv1.SessionKind_SESSION_KIND_AGENT {
		return done()
	}
	if !t.mayActFor(session.GetIdentity()) {
		return notYours(session.GetId())
	}
	row, ok := t.work.intercepts.get(review.GetId())
	if !ok {
		return refuse(commandv1.Code_CODE_NOT_FOUND, ReasonInterceptNotFound,
			"Intercept with ID %q not found for this session", review.GetId())
	}
	agent := session.GetAgent()
	if agent.GetName() != row.GetSpec().GetAgent() ||
		agent.GetNamespace() != row.GetSpec().GetNamespace() || !reviewable(row) {
		return withIntercept(row)
	}
	if !isVerdict(review.GetDisposition()) {
		return invalid("%v is not a verdict on an intercept", review.GetDisposition())
	}
	row = reviewed(row, session, review)
	if t.since2() {
		if res := first(sealedTooLarge(op.GetSealedEnvironment()), t.bounded("review", review, maxReviewBytes)); res != nil {
			return res
		}
		row.Message = cut(row.GetMessage(), maxLine)
		row.SealedEnvironment = op.GetSealedEnvironment()
	}
	t.touch(row)
	return withIntercept(row)
}

// reviewable tells whether the intercept waits for an agent. One that rearms
// does although its disposition is ACTIVE all along.
func reviewable(row *commandv1.InterceptRow) bool {
	switch row.GetDisposition() {
	case manager.InterceptDispositionType_WAITING, manager.InterceptDispositionType_NO_AGENT:
		return true
	}
	return rearming(row)
}

func rearming(row *commandv1.InterceptRow) bool {
	return row.GetOwnerState() == commandv1.OwnerState_OWNER_STATE_REARMING &&
		claims(row.GetDisposition())
}

// isVerdict tells whether an agent may give an intercept this disposition.
func isVerdict(d manager.InterceptDispositionType) bool {
	switch d {
	case manager.InterceptDispositionType_ACTIVE,
		manager.InterceptDispositionType_NO_CLIENT,
		manager.InterceptDispositionType_NO_AGENT,
		manager.InterceptDispositionType_NO_MECHANISM,
		manager.InterceptDispositionType_NO_PORTS,
		manager.InterceptDispositionType_AGENT_ERROR,
		manager.InterceptDispositionType_BAD_ARGS:
		return true
	}
	return false
}

func reviewed(
	row *commandv1.InterceptRow, session *commandv1.SessionRow,
	review *manager.ReviewInterceptRequest,
) *commandv1.InterceptRow {
	row = edit(row)
	row.Disposition = review.GetDisposition()
	row.Message = review.GetMessage()
	row.PodIp = review.GetPodIp()
	row.SftpPort = review.GetSftpPort()
	row.FtpPort = review.GetFtpPort()
	row.MountPoint = review.GetMountPoint()
	row.MechanismArgsDesc = review.GetMechanismArgsDesc()
	row.Headers = review.GetHeaders()
	row.Metadata = review.GetMetadata()
	row.Environment, row.SealedEnvironment = review.GetEnvironment(), nil
	row.Mounts = review.GetMounts()
	row.PodName = session.GetAgent().GetPodName()
	row.ApiPort = session.GetAgent().GetApiPort()
	row.AgentSessionId = ""
	if row.GetDisposition() == manager.InterceptDispositionType_ACTIVE {
		row.AgentSessionId = session.GetId()
	}
	if row.GetOwnerState() == commandv1.OwnerState_OWNER_STATE_REARMING {
		row.OwnerState = commandv1.OwnerState_OWNER_STATE_PRESENT
	}
	return row
}
