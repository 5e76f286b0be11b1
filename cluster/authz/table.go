package authz

import "trivet/internal/pki"

const (
	mgrSvc  = "/telepresence.manager.Manager/"
	opSvc   = "/trivet.operator.v1.Operator/"
	peerSvc = "/trivet.peer.v1.Peer/"
	nodeSvc = "/trivet.node.v1.NodeControl/"

	enrollSvc = "/trivet.operator.v1.Enrollment/"
)

func roles(r ...pki.Role) []pki.Role { return r }

var (
	anyone  = roles(pki.RoleServer, pki.RoleNode, pki.RoleAgent, pki.RoleClient, pki.RoleOperator, pki.RoleViewer, pki.RoleDebug)
	users   = roles(pki.RoleClient, pki.RoleAgent, pki.RoleNode, pki.RoleOperator, pki.RoleViewer)
	clients = roles(pki.RoleClient, pki.RoleOperator)
	// A node arrives as the agent of the pods it reported.
	agents  = roles(pki.RoleAgent, pki.RoleNode)
	owners  = roles(pki.RoleClient, pki.RoleOperator, pki.RoleAgent, pki.RoleNode)
	readers = roles(pki.RoleClient, pki.RoleOperator, pki.RoleViewer)
)

// table has one row per rpc. Operators may do what clients may, so that one
// person needs one certificate.
var table = map[string][]pki.Role{
	mgrSvc + "Version":                         users,
	mgrSvc + "GetClientConfig":                 users,
	mgrSvc + "GetTelepresenceAPI":              users,
	mgrSvc + "GetKnownWorkloadKinds":           users,
	mgrSvc + "GetAgentImageFQN":                owners,
	mgrSvc + "GetAgentConfig":                  owners,
	mgrSvc + "GetLogs":                         clients,
	mgrSvc + "ArriveAsClient":                  clients,
	mgrSvc + "ReconnectClient":                 clients,
	mgrSvc + "ArriveAsAgent":                   agents,
	mgrSvc + "ReconnectAgent":                  agents,
	mgrSvc + "Remain":                          owners,
	mgrSvc + "Depart":                          owners,
	mgrSvc + "SetLogLevel":                     clients,
	mgrSvc + "WatchLogLevel":                   agents,
	mgrSvc + "WatchAgentPods":                  readers,
	mgrSvc + "WatchAgentPodsDelta":             readers,
	mgrSvc + "WatchAgentPodsInNamespacesDelta": readers,
	mgrSvc + "WatchAgents":                     readers,
	mgrSvc + "WatchAgentsDelta":                readers,
	mgrSvc + "WatchAgentsNS":                   readers,
	mgrSvc + "WatchIntercepts":                 users,
	mgrSvc + "WatchInterceptsDelta":            users,
	mgrSvc + "WatchWorkloads":                  readers,
	mgrSvc + "WatchClusterInfo":                readers,
	mgrSvc + "EnsureAgent":                     clients,
	mgrSvc + "PrepareIntercept":                clients,
	mgrSvc + "CreateIntercept":                 clients,
	mgrSvc + "RemoveIntercept":                 clients,
	mgrSvc + "UpdateIntercept":                 clients,
	mgrSvc + "GetIntercept":                    owners,
	mgrSvc + "ReviewIntercept":                 agents,
	mgrSvc + "Lookup":                          clients,
	mgrSvc + "LookupDNS":                       clients,
	mgrSvc + "WatchLookupDNS":                  agents,
	mgrSvc + "AgentLookupDNSResponse":          agents,
	mgrSvc + "WatchDial":                       owners,
	mgrSvc + "Tunnel":                          owners,
	mgrSvc + "ReportMetrics":                   agents,
	mgrSvc + "UninstallAgents":                 roles(pki.RoleOperator),
	mgrSvc + "GetLicense":                      users,
	mgrSvc + "CanConnectAmbassadorCloud":       users,
	mgrSvc + "GetCloudConfig":                  users,

	opSvc + "Status":             readers,
	opSvc + "ListSessions":       roles(pki.RoleOperator, pki.RoleViewer),
	opSvc + "ListIntercepts":     readers,
	opSvc + "GetIntercept":       readers,
	opSvc + "CreateIntercept":    clients,
	opSvc + "DeleteIntercept":    clients,
	opSvc + "ListNodes":          readers,
	opSvc + "ListWorkloads":      readers,
	opSvc + "PutConfig":          roles(pki.RoleOperator),
	opSvc + "PutConfigStream":    roles(pki.RoleOperator),
	opSvc + "ListConfig":         roles(pki.RoleOperator, pki.RoleViewer),
	opSvc + "DeleteConfig":       roles(pki.RoleOperator),
	opSvc + "GetConfig":          roles(pki.RoleOperator, pki.RoleViewer),
	opSvc + "Digest":             roles(pki.RoleOperator, pki.RoleViewer),
	opSvc + "ListPeers":          roles(pki.RoleOperator, pki.RoleViewer),
	opSvc + "TransferLeadership": roles(pki.RoleOperator),
	opSvc + "Watch":              roles(pki.RoleOperator, pki.RoleViewer),
	opSvc + "AddPeer":            roles(pki.RoleOperator),
	opSvc + "RemovePeer":         roles(pki.RoleOperator),
	opSvc + "RaftInfo":           roles(pki.RoleOperator, pki.RoleViewer),
	opSvc + "SaveSnapshot":       roles(pki.RoleOperator),
	opSvc + "RestoreSnapshot":    roles(pki.RoleOperator),
	opSvc + "CreateToken":        roles(pki.RoleOperator),
	opSvc + "ListTokens":         roles(pki.RoleOperator),
	opSvc + "RevokeToken":        roles(pki.RoleOperator),
	opSvc + "ListIdentities":     roles(pki.RoleOperator, pki.RoleViewer),
	opSvc + "SetIdentity":        roles(pki.RoleOperator),
	opSvc + "GetAuthority":       roles(pki.RoleOperator, pki.RoleViewer),
	opSvc + "RotateAuthority":    roles(pki.RoleOperator),
	opSvc + "ListAudit":          roles(pki.RoleOperator),
	opSvc + "Collect":            roles(pki.RoleOperator),
	opSvc + "Profile":            roles(pki.RoleOperator),
	opSvc + "Health":             roles(pki.RoleOperator, pki.RoleViewer),
	opSvc + "GetLimits":          roles(pki.RoleOperator, pki.RoleViewer),
	opSvc + "SetLimits":          roles(pki.RoleOperator),
	opSvc + "ListPolicies":       roles(pki.RoleOperator, pki.RoleViewer),
	opSvc + "PutPolicy":          roles(pki.RoleOperator),
	opSvc + "DeletePolicy":       roles(pki.RoleOperator),

	nodeSvc + "Sync": roles(pki.RoleNode),

	peerSvc + "Hello":            roles(pki.RoleServer),
	peerSvc + "Propose":          roles(pki.RoleServer),
	peerSvc + "ReadRevision":     roles(pki.RoleServer),
	peerSvc + "AskAgent":         roles(pki.RoleServer),
	peerSvc + "Touch":            roles(pki.RoleServer),
	peerSvc + "WatchAttachments": roles(pki.RoleServer),
	peerSvc + "Dial":             roles(pki.RoleServer),
	peerSvc + "Transfer":         roles(pki.RoleServer),
	peerSvc + "Relay":            roles(pki.RoleServer),
	peerSvc + "ConfirmTerm":      roles(pki.RoleServer),
	peerSvc + "Evidence":         roles(pki.RoleServer),
	peerSvc + "Join":             roles(pki.RoleServer),
	peerSvc + "Remove":           roles(pki.RoleServer),
	peerSvc + "Digests":          roles(pki.RoleServer),
	peerSvc + "FetchState":       roles(pki.RoleServer),
	peerSvc + "Restore":          roles(pki.RoleServer),

	// Enroll is for those too who have no certificate, see Guard.
	enrollSvc + "Enroll": anyone,
	enrollSvc + "Renew":  anyone,

	"/grpc.health.v1.Health/Check": anyone,
	"/grpc.health.v1.Health/Watch": anyone,
	"/grpc.health.v1.Health/List":  anyone,
}

// Roles lists who may call an rpc (its full method name); ok is false when the
// table has no row for it.
func Roles(method string) (allowed []pki.Role, ok bool) {
	r, ok := table[method]
	return r, ok
}

// Methods lists every rpc that has a row.
func Methods() []string {
	out := make([]string, 0, len(table))
	for m := range table {
		out = append(out, m)
	}
	return out
}
