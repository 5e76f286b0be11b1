package fsm

import (
	"cmp"
	"fmt"
	"strings"

	commandv1 "trivet/proto/trivet/command/v1"
)

// systemConfig starts the configuration keys that belong to trivet itself.
const systemConfig = "trivet/"

// Refused commands are recorded only where somebody was not allowed to, and of
// one identity no more than maxRefusals in refusalWindow and class: whoever is
// refused must not be able to push everybody's records out of the ring. To
// count them, the newest refusalScan records are looked at.
const (
	maxRefusals   = 10
	refusalWindow = 60 * 1e9
	refusalScan   = 256
	moreRefusals  = " (more of these within a minute are not recorded)"
)

// recording says whether a command that succeeded makes an audit record.
type recording uint8

const (
	// recordChange is the rule: it does if it changed a row.
	recordChange recording = iota
	recordAlways
	recordNever
)

func (t *tx) worthRecording() bool {
	return t.record == recordAlways || t.record == recordChange && len(t.events) > t.start
}

// refusalsOnRecord counts the caller's latest refusals.
func (t *tx) refusalsOnRecord(class commandv1.AuditClass) (n int) {
	head, _ := auditHead(t.work.meta.GetAudit(), class)
	scanned := 0
	t.work.audit.rows.Descend(auditKey(class, head.GetNumber()), func(_ string, s *stored[*commandv1.AuditRow]) bool {
		row := s.row
		if row.GetClass() != class || scanned == refusalScan || t.now()-row.GetTime() >= refusalWindow {
			return false
		}
		scanned++
		if row.GetCode() != commandv1.Code_CODE_OK && row.GetIdentity() == t.cmd.GetIdentity() {
			n++
		}
		return n < maxRefusals
	})
	return n
}

// recorded is the text of an audit record. An empty action means that there is
// to be none.
type recorded struct{ action, subject, detail string }

// described says what is recorded of a command that was applied. Nothing secret
// may be in it: no environment, no value of a configuration key, no secret of a
// token, no key.
func (t *tx) described(res *commandv1.Result) recorded {
	switch op := t.cmd.GetOp().(type) {
	case *commandv1.Command_InitCluster:
		return recorded{"cluster.init", op.InitCluster.GetClusterId(), ""}
	case *commandv1.Command_PutServer:
		return recorded{"server.start", cmp.Or(op.PutServer.GetServer().GetName(), op.PutServer.GetServer().GetId()), op.PutServer.GetServer().GetVersion()}
	case *commandv1.Command_RemoveServer:
		return recorded{"server.remove", op.RemoveServer.GetId(), res.GetServer().GetName()}
	case *commandv1.Command_SetLimits:
		return recorded{"limits.set", "", describeLimits(op.SetLimits.GetLimits())}

	case *commandv1.Command_PutIdentity:
		verb := "identity.allow"
		if op.PutIdentity.GetDenied() {
			verb = "identity.deny"
		}
		return recorded{verb, op.PutIdentity.GetUri(), op.PutIdentity.GetReason()}
	case *commandv1.Command_CreateToken:
		x := op.CreateToken
		return recorded{"token.create", x.GetId(), fmt.Sprintf("role %s, names %q, uses %d", x.GetRole(), x.GetNameGlob(), x.GetUses())}
	case *commandv1.Command_ConsumeToken:
		return recorded{"token.use", op.ConsumeToken.GetId(), op.ConsumeToken.GetRole() + "/" + op.ConsumeToken.GetName()}
	case *commandv1.Command_RevokeToken:
		return recorded{"token.revoke", op.RevokeToken.GetId(), ""}
	case *commandv1.Command_PutKey:
		detail := op.PutKey.GetKey().GetKind()
		if op.PutKey.GetKey().GetActive() {
			detail += ", active"
		}
		return recorded{"key.put", op.PutKey.GetKey().GetId(), detail}
	case *commandv1.Command_DeleteKey:
		return recorded{"key.delete", op.DeleteKey.GetId(), ""}
	case *commandv1.Command_PutPolicy:
		return recorded{"policy.put", op.PutPolicy.GetPolicy().GetName(), ""}
	case *commandv1.Command_DeletePolicy:
		return recorded{"policy.delete", op.DeletePolicy.GetName(), ""}

	case *commandv1.Command_RecordAudit:
		x := op.RecordAudit
		return recorded{x.GetAction(), x.GetSubject(), x.GetDetail()}
	}
	return t.describedUse(res)
}

// describedUse is the half of described that is about using the cluster rather
// than keeping it.
func (t *tx) describedUse(res *commandv1.Result) recorded {
	switch op := t.cmd.GetOp().(type) {
	case *commandv1.Command_PutConfig:
		// Users' keys are data, written by the thousand a second.
		if strings.HasPrefix(op.PutConfig.GetKey(), systemConfig) {
			return recorded{"config.put", op.PutConfig.GetKey(), ""}
		}
	case *commandv1.Command_DeleteConfig:
		if strings.HasPrefix(op.DeleteConfig.GetKey(), systemConfig) {
			return recorded{"config.delete", op.DeleteConfig.GetKey(), ""}
		}

	case *commandv1.Command_ArriveClient:
		return recorded{"client.arrive", t.cmd.GetStampedId(), op.ArriveClient.GetInfo().GetName()}
	case *commandv1.Command_ArriveAgent:
		info := op.ArriveAgent.GetInfo()
		return recorded{"agent.arrive", info.GetNamespace() + "/" + info.GetName(), info.GetPodName()}
	case *commandv1.Command_Depart:
		return recorded{"session.depart", op.Depart.GetSessionId(), ""}
	case *commandv1.Command_ExpireSessions:
		return recorded{"session.expire", "", t.describeGone()}

	case *commandv1.Command_CreateIntercept:
		spec := op.CreateIntercept.GetSpec()
		what := recorded{
			"intercept.create", interceptID(op.CreateIntercept.GetSessionId(), spec.GetName()),
			spec.GetNamespace() + "/" + spec.GetAgent(),
		}
		if op.CreateIntercept.GetForce() {
			what.action = "intercept.create.force"
		}
		if told := res.GetMessage(); told != "" {
			what.detail += ": " + told
		}
		return what
	case *commandv1.Command_RemoveIntercept:
		id := op.RemoveIntercept.GetId()
		if id == "" {
			id = interceptID(op.RemoveIntercept.GetSessionId(), op.RemoveIntercept.GetName())
		}
		return recorded{"intercept.remove", id, ""}
	case *commandv1.Command_SetIntercept:
		if op.SetIntercept.GetRemove() {
			return recorded{"intercept.end", op.SetIntercept.GetId(), ""}
		}

	case *commandv1.Command_PutNode:
		return recorded{"node.start", op.PutNode.GetNode().GetName(), op.PutNode.GetNode().GetVersion()}
	case *commandv1.Command_RemoveNode:
		return recorded{"node.remove", op.RemoveNode.GetName(), ""}
	case *commandv1.Command_UninstallAgents:
		return recorded{"agent.uninstall", op.UninstallAgents.GetNamespace(), strings.Join(op.UninstallAgents.GetNames(), " ")}
	case *commandv1.Command_EnsureAgent:
		return recorded{"agent.ensure", op.EnsureAgent.GetNamespace() + "/" + op.EnsureAgent.GetName(), ""}
	}
	return recorded{}
}

// describeGone lists the sessions that the command removed.
func (t *tx) describeGone() string {
	var ids []string
	for _, e := range t.events[t.start:] {
		if e.Table == TableSessions && e.Op == Delete {
			ids = append(ids, e.Key)
		}
	}
	return fmt.Sprintf("%d sessions: %s", len(ids), strings.Join(ids, " "))
}

// describeLimits lists the limits that are not the default.
func describeLimits(l *commandv1.Limits) string {
	var out []string
	fields := l.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if fd := fields.Get(i); l.ProtoReflect().Has(fd) {
			out = append(out, fmt.Sprintf("%s=%d", fd.JSONName(), l.ProtoReflect().Get(fd).Uint()))
		}
	}
	if len(out) == 0 {
		return "defaults"
	}
	return strings.Join(out, " ")
}

func (t *tx) recordAudit(op *commandv1.RecordAudit) *commandv1.Result {
	if ringOf(op.GetClass()) == 0 {
		return invalid("audit class %v is unknown", op.GetClass())
	}
	if op.GetAction() == "" {
		return invalid("audit action must not be empty")
	}
	t.record = recordAlways
	return done()
}
