package fsm

import (
	"fmt"

	"pgregory.net/rapid"

	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

// Small pools, so that commands meet each other.
var (
	genIdentity = rapid.SampledFrom([]string{
		"", "", "spiffe://c/client/alice", "spiffe://c/client/bob", "spiffe://c/node/n1", "spiffe://c/operator/olga",
		"spiffe://c/server/s1",
	})
	genClient    = rapid.SampledFrom([]string{"alice", "bob", "carol"})
	genSession   = rapid.SampledFrom([]string{"alice", "bob", "carol", "agent:u1", "agent:u2", "agent:u3", "ghost"})
	genUID       = rapid.SampledFrom([]string{"u1", "u2", "u3", ""})
	genNamespace = rapid.SampledFrom([]string{"default", "default", "prod", ""})
	genWorkload  = rapid.SampledFrom([]string{"web", "web", "api", "a/b"})
	genName      = rapid.SampledFrom([]string{"one", "two", ""})
	genNode      = rapid.SampledFrom([]string{"n1", "n2", ""})
	genVersion   = rapid.SampledFrom([]string{"1.0.0", "1.0.0", "2.0.0", ""})
	genKey       = rapid.SampledFrom([]string{"a", "b", "c", ""})
	genHeader    = rapid.SampledFrom([]string{"", "", "a", "b", ":path-regex:^a.*"})
	genPort      = rapid.SampledFrom([]string{"http", "80", "81/TCP", ""})
	genRevision  = rapid.Uint64Range(0, 40)
)

// genCommand draws any command, most of them sensible.
func genCommand(t *rapid.T, now int64) *commandv1.Command {
	c := &commandv1.Command{
		// Mostly today's; the rest is from servers that are not upgraded yet.
		Version:   CommandVersion - uint32(rapid.IntRange(0, 9).Draw(t, "older")/9),
		Identity:  genIdentity.Draw(t, "identity"),
		Time:      now + rapid.Int64Range(-2, 20).Draw(t, "seconds")*1e9,
		StampedId: rapid.SampledFrom([]string{"alice", "bob", "carol", "u1", "u2", ""}).Draw(t, "stamp"),
	}
	if rapid.IntRange(0, 4).Draw(t, "numbered") == 0 {
		n := rapid.Uint64Range(0, 12).Draw(t, "number")
		c.RequestId = &commandv1.RequestId{
			Writer:        rapid.SampledFrom([]string{"client/w", "server/s1/b1", "server/s1/b2"}).Draw(t, "writer"),
			Number:        n,
			Lowest:        rapid.Uint64Range(0, n+1).Draw(t, "lowest"),
			PayloadDigest: []byte(rapid.SampledFrom([]string{"x", "y"}).Draw(t, "digest")),
		}
	}
	if rapid.IntRange(0, 9).Draw(t, "fenced") == 0 {
		c.ExpectedTerm = rapid.Uint64Range(1, 2).Draw(t, "term")
	}
	generators[rapid.IntRange(0, len(generators)-1).Draw(t, "op")](t, c)
	return c
}

// generators fill in one operation each. Those of sessions and intercepts come
// first and more than once: they have the rules.
var generators = []func(*rapid.T, *commandv1.Command){
	genArriveClient, genArriveAgent, genCreate, genReview, genSet, genReport, genDepart,
	genArriveAgent, genCreate, genReview, genSet,
	genRemove, genExpire, genGeneration, genEnsure, genUninstall, genNodeOps, genConfig, genTokens, genOthers,
}

func genArriveClient(t *rapid.T, c *commandv1.Command) {
	c.Op = &commandv1.Command_ArriveClient{ArriveClient: &commandv1.ArriveClient{
		Info: &manager.ClientInfo{
			Name: genClient.Draw(t, "name"), InstallId: "i", Product: "p",
			Version: rapid.SampledFrom([]string{"2.14.0", "2.14.0", "1.0.0"}).Draw(t, "version"),
		},
		Compat: rapid.IntRange(0, 5).Draw(t, "compat") == 0,
	}}
}

func genArriveAgent(t *rapid.T, c *commandv1.Command) {
	info := agentInfo(genWorkload.Draw(t, "workload"), genUID.Draw(t, "uid"))
	info.Namespace = genNamespace.Draw(t, "namespace")
	info.Version = genVersion.Draw(t, "version")
	info.ApiPort = rapid.Int32Range(1, 2).Draw(t, "port")
	if rapid.Bool().Draw(t, "http") {
		info.Mechanisms = append(info.Mechanisms, &manager.AgentInfo_Mechanism{
			Name: "http", Product: "p", Version: "1",
		})
	}
	c.Op = &commandv1.Command_ArriveAgent{ArriveAgent: &commandv1.ArriveAgent{
		Info: info, SessionId: rapid.SampledFrom([]string{"", "", "agent:u1", "x"}).Draw(t, "session"),
		SealedEnvironments: []byte(rapid.SampledFrom([]string{"", "", "sealed"}).Draw(t, "sealed")),
	}}
}

func genDepart(t *rapid.T, c *commandv1.Command) {
	c.Op = &commandv1.Command_Depart{Depart: &commandv1.Depart{SessionId: genSession.Draw(t, "session")}}
}

func genExpire(t *rapid.T, c *commandv1.Command) {
	op := &commandv1.ExpireSessions{}
	for range rapid.IntRange(0, 3).Draw(t, "items") {
		op.Items = append(op.Items, &commandv1.ExpireSessions_Item{
			SessionId: genSession.Draw(t, "session"), SeenModifyRevision: genRevision.Draw(t, "seen"),
		})
	}
	c.Op = &commandv1.Command_ExpireSessions{ExpireSessions: op}
}

func genGeneration(t *rapid.T, c *commandv1.Command) {
	c.Op = &commandv1.Command_SetGeneration{SetGeneration: &commandv1.SetGeneration{
		SessionId:  genSession.Draw(t, "session"),
		Generation: commandv1.Generation(rapid.Int32Range(0, 3).Draw(t, "generation")),
	}}
}

func genSpec(t *rapid.T) *manager.InterceptSpec {
	s := &manager.InterceptSpec{
		Name: genName.Draw(t, "name"), Client: "c", Agent: genWorkload.Draw(t, "workload"),
		Namespace: genNamespace.Draw(t, "namespace"),
		Mechanism: rapid.SampledFrom([]string{"tcp", "tcp", "http"}).Draw(t, "mechanism"),
	}
	if rapid.Bool().Draw(t, "numeric") {
		s.ContainerPort = rapid.Int32Range(80, 81).Draw(t, "port")
	} else {
		s.PortIdentifier = genPort.Draw(t, "port")
	}
	if h := genHeader.Draw(t, "header"); h != "" {
		s.HeaderFilters = map[string]string{"X": h, "Y": "1"}
	}
	if p := genHeader.Draw(t, "path"); p != "" {
		s.PathFilters = []string{p}
	}
	s.Wiretap = rapid.IntRange(0, 9).Draw(t, "wiretap") == 0
	s.Replace = rapid.IntRange(0, 9).Draw(t, "replace") == 0
	return s
}

func genCreate(t *rapid.T, c *commandv1.Command) {
	c.Op = &commandv1.Command_CreateIntercept{CreateIntercept: &commandv1.CreateIntercept{
		SessionId: genSession.Draw(t, "session"), Spec: genSpec(t),
		Force: rapid.Bool().Draw(t, "force"), Lease: rapid.Int64Range(-1, 5).Draw(t, "lease"),
	}}
}

func genIntercept(t *rapid.T) string {
	return interceptID(genClient.Draw(t, "client"), rapid.SampledFrom([]string{"one", "two"}).Draw(t, "name"))
}

func genReview(t *rapid.T, c *commandv1.Command) {
	*c = commandv1.Command{
		Version: c.Version, Time: c.Time, RequestId: c.RequestId, Identity: c.Identity,
		Op: cmdReview(genSession.Draw(t, "agent"), genIntercept(t),
			manager.InterceptDispositionType(rapid.Int32Range(0, 10).Draw(t, "disposition"))).Op,
	}
}

func genSet(t *rapid.T, c *commandv1.Command) {
	c.Op = &commandv1.Command_SetIntercept{SetIntercept: &commandv1.SetIntercept{
		Id: genIntercept(t), SeenModifyRevision: genRevision.Draw(t, "seen"),
		Disposition: manager.InterceptDispositionType(rapid.Int32Range(0, 10).Draw(t, "disposition")),
		OwnerState:  commandv1.OwnerState(rapid.Int32Range(0, 4).Draw(t, "owner")),
		ClearAgent:  rapid.Bool().Draw(t, "clear"),
		Remove:      rapid.IntRange(0, 9).Draw(t, "remove") == 0,
	}}
}

func genRemove(t *rapid.T, c *commandv1.Command) {
	op := &commandv1.RemoveIntercept{}
	if rapid.Bool().Draw(t, "operator") {
		op.Id = genIntercept(t)
	} else {
		op.SessionId, op.Name = genSession.Draw(t, "session"), genName.Draw(t, "name")
	}
	c.Op = &commandv1.Command_RemoveIntercept{RemoveIntercept: op}
}

func genReport(t *rapid.T, c *commandv1.Command) {
	op := &commandv1.ReportWorkloads{Node: genNode.Draw(t, "node")}
	for range rapid.IntRange(0, 3).Draw(t, "workloads") {
		w := &commandv1.WorkloadReport{
			Namespace: genNamespace.Draw(t, "namespace"), Name: genWorkload.Draw(t, "workload"), Kind: "Process",
		}
		for i := range rapid.IntRange(0, 2).Draw(t, "pods") {
			w.Pods = append(w.Pods, &commandv1.Pod{
				Name: fmt.Sprint("pod-", i), Uid: genUID.Draw(t, "uid"),
				Containers: []*commandv1.Container{{Name: "app", Ports: []*commandv1.ContainerPort{
					{Name: "http", Port: 80, Protocol: "TCP"}, {Name: "alt", Port: 81},
				}}},
			})
		}
		op.Workloads = append(op.Workloads, w)
	}
	c.Op = &commandv1.Command_ReportWorkloads{ReportWorkloads: op}
}

func genEnsure(t *rapid.T, c *commandv1.Command) {
	c.Op = &commandv1.Command_EnsureAgent{EnsureAgent: &commandv1.EnsureAgent{
		SessionId: genSession.Draw(t, "session"), Namespace: genNamespace.Draw(t, "namespace"),
		Name: genWorkload.Draw(t, "workload"),
	}}
}

func genUninstall(t *rapid.T, c *commandv1.Command) {
	c.Op = &commandv1.Command_UninstallAgents{UninstallAgents: &commandv1.UninstallAgents{
		SessionId: genSession.Draw(t, "session"), Namespace: genNamespace.Draw(t, "namespace"),
		Names: rapid.SliceOfN(genWorkload, 0, 2).Draw(t, "workloads"),
	}}
}

func genNodeOps(t *rapid.T, c *commandv1.Command) {
	if rapid.Bool().Draw(t, "put") {
		c.Op = &commandv1.Command_PutNode{PutNode: &commandv1.PutNode{
			Node: &commandv1.NodeRow{Name: genNode.Draw(t, "node"), CreateRevision: 99, ModifyRevision: 99},
		}}
		return
	}
	c.Op = &commandv1.Command_RemoveNode{RemoveNode: &commandv1.RemoveNode{Name: genNode.Draw(t, "node")}}
}

func genConfig(t *rapid.T, c *commandv1.Command) {
	var condition *uint64
	if rapid.Bool().Draw(t, "conditional") {
		seen := genRevision.Draw(t, "seen")
		condition = &seen
	}
	if rapid.Bool().Draw(t, "put") {
		c.Op = &commandv1.Command_PutConfig{PutConfig: &commandv1.PutConfig{
			Key: genKey.Draw(t, "key"), Value: []byte(genKey.Draw(t, "value")), IfModifyRevision: condition,
		}}
		return
	}
	c.Op = &commandv1.Command_DeleteConfig{DeleteConfig: &commandv1.DeleteConfig{
		Key: genKey.Draw(t, "key"), IfModifyRevision: condition,
	}}
}

func genTokens(t *rapid.T, c *commandv1.Command) {
	switch rapid.IntRange(0, 2).Draw(t, "token op") {
	case 0:
		c.Op = &commandv1.Command_CreateToken{CreateToken: &commandv1.CreateToken{
			Id: genKey.Draw(t, "id"), SecretHash: secretHash("s"), Role: "client", NameGlob: "*",
			Uses: rapid.Uint32Range(0, 2).Draw(t, "uses"), ExpiresAt: c.Time + 1e9,
		}}
	case 1:
		c.Op = &commandv1.Command_ConsumeToken{ConsumeToken: &commandv1.ConsumeToken{
			Id: genKey.Draw(t, "id"), SecretHash: secretHash("s"), Role: "client",
			Name: genClient.Draw(t, "name"), KeyDigest: []byte(genKey.Draw(t, "key")),
		}}
	case 2:
		c.Op = &commandv1.Command_RevokeToken{RevokeToken: &commandv1.RevokeToken{Id: genKey.Draw(t, "id")}}
	}
}

func genOthers(t *rapid.T, c *commandv1.Command) {
	switch rapid.IntRange(0, 9).Draw(t, "other op") {
	case 0:
		c.Op = &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{
			ClusterId: genKey.Draw(t, "cluster"), DedupeKey: secretHash("key"),
		}}
	case 1:
		c.Op = &commandv1.Command_PutServer{PutServer: &commandv1.PutServer{Server: &commandv1.ServerRow{
			Id: "s1", BootId: rapid.SampledFrom([]string{"b1", "b2", ""}).Draw(t, "boot"),
		}}}
	case 2:
		c.Op = &commandv1.Command_PutIdentity{PutIdentity: &commandv1.PutIdentity{
			Uri: genIdentity.Draw(t, "uri"), Denied: rapid.Bool().Draw(t, "denied"),
		}}
	case 3:
		c.Op = &commandv1.Command_RemoveServer{RemoveServer: &commandv1.RemoveServer{Id: "s1"}}
	case 4:
		c.Op = &commandv1.Command_PutKey{PutKey: &commandv1.PutKey{Key: &commandv1.KeyRow{
			Id: genKey.Draw(t, "key"), Kind: genName.Draw(t, "kind"), Active: rapid.Bool().Draw(t, "active"),
		}}}
	case 5:
		c.Op = &commandv1.Command_DeleteKey{DeleteKey: &commandv1.DeleteKey{Id: genKey.Draw(t, "key")}}
	case 6:
		c.Op = &commandv1.Command_PutPolicy{PutPolicy: &commandv1.PutPolicy{Policy: &commandv1.PolicyRow{
			Name: genName.Draw(t, "policy"), AllowSteal: rapid.Bool().Draw(t, "steal"), MaxDuration: rapid.Int64Range(0, 5).Draw(t, "max") * 1e9,
		}}}
	case 7:
		c.Op = &commandv1.Command_DeletePolicy{DeletePolicy: &commandv1.DeletePolicy{Name: genName.Draw(t, "policy")}}
	case 8:
		c.Op = &commandv1.Command_SetLimits{SetLimits: &commandv1.SetLimits{Limits: &commandv1.Limits{
			SessionsPerIdentity: rapid.Uint32Range(0, 3).Draw(t, "sessions"), ConfigKeys: rapid.Uint32Range(0, 3).Draw(t, "keys"),
			InterceptsPerIdentity: rapid.Uint32Range(0, 3).Draw(t, "intercepts"), AgentsPerNode: rapid.Uint32Range(0, 3).Draw(t, "agents"),
		}}}
	case 9:
		c.Op = &commandv1.Command_RecordAudit{RecordAudit: &commandv1.RecordAudit{
			Class: commandv1.AuditClass(rapid.Int32Range(0, 4).Draw(t, "class")), Action: genName.Draw(t, "action"), Detail: genKey.Draw(t, "detail"),
		}}
	}
}
