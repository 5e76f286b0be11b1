package fsm

import (
	"fmt"
	"strings"

	commandv1 "trivet/proto/trivet/command/v1"
)

func (in *interpreter) removeServer(a arguments) *commandv1.Command {
	return &commandv1.Command{Op: &commandv1.Command_RemoveServer{RemoveServer: &commandv1.RemoveServer{Id: a.pos(0)}}}
}

func (in *interpreter) putKey(a arguments) *commandv1.Command {
	return &commandv1.Command{Op: &commandv1.Command_PutKey{PutKey: &commandv1.PutKey{
		Key: &commandv1.KeyRow{
			Id: a.pos(0), Kind: a.get("kind", ""), Sealed: []byte(a.get("sealed", "")), Public: []byte(a.get("public", "")),
			Active: a.has("active"),
		},
		IfModifyRevision: revisionCondition(a),
	}}}
}

func (in *interpreter) deleteKey(a arguments) *commandv1.Command {
	return &commandv1.Command{Op: &commandv1.Command_DeleteKey{DeleteKey: &commandv1.DeleteKey{
		Id: a.pos(0), IfModifyRevision: revisionCondition(a),
	}}}
}

func (in *interpreter) putPolicy(a arguments) *commandv1.Command {
	return &commandv1.Command{Op: &commandv1.Command_PutPolicy{PutPolicy: &commandv1.PutPolicy{
		Policy: &commandv1.PolicyRow{
			Name: a.pos(0), Order: uint32(number(a.get("order", "0"))), Identities: a.named["who"], Namespaces: a.named["namespace"],
			Workloads: a.named["workload"], AllowSteal: a.has("steal"), AllowCopy: a.has("copy"), AllowReplace: a.has("replace"),
			RequireFilter: a.has("filter"), MaxDuration: int64(number(a.get("max", "0")) * 1e9), WithheldEnvironment: a.named["withheld"],
		},
		IfModifyRevision: revisionCondition(a),
	}}}
}

func (in *interpreter) deletePolicy(a arguments) *commandv1.Command {
	return &commandv1.Command{Op: &commandv1.Command_DeletePolicy{DeletePolicy: &commandv1.DeletePolicy{
		Name: a.pos(0), IfModifyRevision: revisionCondition(a),
	}}}
}

func (in *interpreter) setLimits(a arguments) *commandv1.Command {
	n := func(key string) uint32 { return uint32(number(a.get(key, "0"))) }
	var seen *commandv1.Limits
	if sessions := a.get("seen", ""); sessions != "" {
		seen = DefaultLimits()
		seen.SessionsPerIdentity = uint32(number(sessions))
	}
	return &commandv1.Command{Op: &commandv1.Command_SetLimits{SetLimits: &commandv1.SetLimits{IfLimits: seen, Limits: &commandv1.Limits{
		SessionsPerIdentity: n("sessions"), InterceptsPerIdentity: n("intercepts"), InterceptsPerNamespace: n("namespace"),
		ConfigKeys: n("keys"), ConfigBytes: uint64(n("bytes")), Tokens: n("tokens"), Policies: n("policies"),
		WorkloadsPerNode: n("workloads"), Nodes: n("nodes"), AgentsPerNode: n("agents"),
	}}}}
}

func (in *interpreter) recordAudit(a arguments) *commandv1.Command {
	class := commandv1.AuditClass(commandv1.AuditClass_value["AUDIT_CLASS_"+strings.ToUpper(a.get("class", ""))])
	return &commandv1.Command{Op: &commandv1.Command_RecordAudit{RecordAudit: &commandv1.RecordAudit{
		Class: class, Action: a.pos(0), Subject: a.pos(1), Detail: a.get("detail", ""),
	}}}
}

// audit prints the records of a class.
func (in *interpreter) audit(a arguments) string {
	class := commandv1.AuditClass(commandv1.AuditClass_value["AUDIT_CLASS_"+strings.ToUpper(a.pos(0))])
	var lines []string
	for row := range in.m.Root().Audit(class, number(a.get("after", "0"))) {
		lines = append(lines, strings.TrimRight(fmt.Sprintf("  %d at %d: %s %s %s %s %s %s", row.GetNumber(), row.GetRevision(),
			row.GetIdentity(), row.GetAction(), row.GetSubject(), strings.TrimPrefix(row.GetCode().String(), "CODE_"),
			row.GetReason(), row.GetDetail()), " "))
	}
	return strings.Join(lines, "\n")
}

func containers(text string) []*commandv1.Container {
	var out []*commandv1.Container
	for part := range strings.SplitSeq(text, "+") {
		name, ports, _ := strings.Cut(part, ":")
		c := &commandv1.Container{Name: name}
		for p := range strings.SplitSeq(ports, ",") {
			p, protocol, _ := strings.Cut(p, "/")
			words := strings.Split(p, ":")
			port := &commandv1.ContainerPort{Protocol: protocol, Port: integer(words[len(words)-1])}
			if len(words) > 1 {
				port.Name = words[0]
			}
			c.Ports = append(c.Ports, port)
		}
		out = append(out, c)
	}
	return out
}

func (in *interpreter) ensureAgent(a arguments) *commandv1.Command {
	return &commandv1.Command{Op: &commandv1.Command_EnsureAgent{EnsureAgent: &commandv1.EnsureAgent{
		SessionId: a.pos(0), Namespace: a.pos(1), Name: a.pos(2),
	}}}
}

// uninstall names a session, a namespace and workloads.
func (in *interpreter) uninstall(a arguments) *commandv1.Command {
	op := &commandv1.UninstallAgents{SessionId: a.pos(0), Namespace: a.pos(1)}
	for n := 2; a.pos(n) != ""; n++ {
		op.Names = append(op.Names, a.pos(n))
	}
	return &commandv1.Command{Op: &commandv1.Command_UninstallAgents{UninstallAgents: op}}
}
