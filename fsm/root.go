package fsm

import (
	"iter"

	commandv1 "trivet/proto/trivet/command/v1"
)

// Position is the place of a log entry, as Raft numbers it.
type Position struct{ Index, Term uint64 }

// Root is the state right after one log entry. A published root never changes:
// any number of goroutines may read it without a lock, for as long as they
// like. The rows it hands out are shared and must not be modified.
//
// Methods that take a yield function are iterators: `for row := range
// root.Sessions`. They yield in the order of the table's key.
type Root struct {
	revision uint64
	position Position
	// commandVersion is that of the newest command applied.
	commandVersion uint32
	meta           *commandv1.MetaRow
	sum            sum
	// epoch counts the restores of the machine that made the root.
	epoch uint64
	// dedupeBytes is the size of all stored answers, configBytes that of all
	// configuration values.
	dedupeBytes, configBytes int
	// limits are the effective ones.
	limits *commandv1.Limits
	// bounds and shares are for the one who applies; published states have none.
	bounds dedupeBounds
	shares map[string]share

	tables
}

func newRoot() *Root {
	return &Root{meta: &commandv1.MetaRow{}, limits: DefaultLimits(), bounds: defaultBounds, shares: map[string]share{}, tables: newTables()}
}

// publish returns an immutable copy of a working root.
func (r *Root) publish(prev *Root) *Root {
	return &Root{
		revision:       r.revision,
		position:       r.position,
		commandVersion: r.commandVersion,
		meta: &commandv1.MetaRow{
			ClusterId:    r.meta.GetClusterId(),
			DedupeKey:    r.meta.GetDedupeKey(),
			RestoreEpoch: r.meta.GetRestoreEpoch(),
			Time:         r.meta.GetTime(),
			Limits:       r.meta.GetLimits(),
			Audit:        r.meta.GetAudit(),
			SteadyTime:   r.meta.GetSteadyTime(),
		},
		sum:         r.sum,
		epoch:       r.epoch,
		dedupeBytes: r.dedupeBytes,
		configBytes: r.configBytes,
		limits:      r.limits,
		tables:      r.tables.publish(&prev.tables),
	}
}

// Revision returns the revision of the last command in the state; every
// command has one of its own, refused and repeated ones too.
func (r *Root) Revision() uint64 { return r.revision }

// Position returns the place of the last log entry in the state.
func (r *Root) Position() Position { return r.position }

// CommandVersion returns the version of the newest command applied.
func (r *Root) CommandVersion() uint32 { return r.commandVersion }

// Meta returns the state machine's own bookkeeping. Its dedupe key is a secret.
func (r *Root) Meta() *commandv1.MetaRow { return r.meta }

// Session returns a session by id.
func (r *Root) Session(id string) (*commandv1.SessionRow, bool) { return r.sessions.get(id) }

// Intercept returns an intercept by id, "<client session id>:<name>".
func (r *Root) Intercept(id string) (*commandv1.InterceptRow, bool) { return r.intercepts.get(id) }

// Node returns a node by name.
func (r *Root) Node(name string) (*commandv1.NodeRow, bool) { return r.nodes.get(name) }

// Workload returns a workload as nodes have reported it.
func (r *Root) Workload(namespace, name string) (*commandv1.WorkloadRow, bool) {
	return r.workloads.get(workloadKey(namespace, name))
}

// Config returns a configuration entry.
func (r *Root) Config(key string) (*commandv1.ConfigRow, bool) { return r.configs.get(key) }

// Identity returns what is known against an identity. Most have no row.
func (r *Root) Identity(uri string) (*commandv1.IdentityRow, bool) { return r.identities.get(uri) }

// Token returns an enrolment token by the public half.
func (r *Root) Token(id string) (*commandv1.TokenRow, bool) { return r.tokens.get(id) }

// Server returns a server by its Raft id.
func (r *Root) Server(id string) (*commandv1.ServerRow, bool) { return r.servers.get(id) }

// Key returns a key of the cluster by id; what is secret in it is sealed.
func (r *Root) Key(id string) (*commandv1.KeyRow, bool) { return r.keys.get(id) }

// Policy returns a policy by name.
func (r *Root) Policy(name string) (*commandv1.PolicyRow, bool) { return r.policies.get(name) }

// Keys yields all keys of the cluster.
func (r *Root) Keys(yield func(*commandv1.KeyRow) bool) { r.keys.all(yield) }

// Policies yields all policies, by name.
func (r *Root) Policies(yield func(*commandv1.PolicyRow) bool) { r.policies.all(yield) }

// Sessions yields all sessions, agents and clients.
func (r *Root) Sessions(yield func(*commandv1.SessionRow) bool) { r.sessions.all(yield) }

// Intercepts yields all intercepts.
func (r *Root) Intercepts(yield func(*commandv1.InterceptRow) bool) { r.intercepts.all(yield) }

// Nodes yields all nodes.
func (r *Root) Nodes(yield func(*commandv1.NodeRow) bool) { r.nodes.all(yield) }

// Workloads yields all workloads, by namespace and name.
func (r *Root) Workloads(yield func(*commandv1.WorkloadRow) bool) { r.workloads.all(yield) }

// Configs yields all configuration entries.
func (r *Root) Configs(yield func(*commandv1.ConfigRow) bool) { r.configs.all(yield) }

// Identities yields the identities that have a row.
func (r *Root) Identities(yield func(*commandv1.IdentityRow) bool) { r.identities.all(yield) }

// Tokens yields all enrolment tokens.
func (r *Root) Tokens(yield func(*commandv1.TokenRow) bool) { r.tokens.all(yield) }

// Servers yields all servers that ever announced themselves.
func (r *Root) Servers(yield func(*commandv1.ServerRow) bool) { r.servers.all(yield) }

// Len returns the number of rows of a table; of TableDedupe, the number of
// writers.
func (r *Root) Len(t Table) int {
	switch t {
	case TableSessions:
		return r.sessions.rows.Len()
	case TableIntercepts:
		return r.intercepts.rows.Len()
	case TableNodes:
		return r.nodes.rows.Len()
	case TableWorkloads:
		return r.workloads.rows.Len()
	case TableIdentities:
		return r.identities.rows.Len()
	case TableTokens:
		return r.tokens.rows.Len()
	case TableDedupe:
		return r.writers.rows.Len()
	case TableConfig:
		return r.configs.rows.Len()
	case TableServers:
		return r.servers.rows.Len()
	case TableMeta:
		return 1
	case TableKeys:
		return r.keys.rows.Len()
	case TablePolicies:
		return r.policies.rows.Len()
	case TableAudit:
		return r.audit.rows.Len()
	}
	return 0
}

// AgentsOf yields the agent sessions of a workload, by session id.
func (r *Root) AgentsOf(namespace, workload string) iter.Seq[*commandv1.SessionRow] {
	return r.sessions.by(agentsByWorkload, part(namespace)+part(workload))
}

// AgentsIn yields the agent sessions of a namespace.
func (r *Root) AgentsIn(namespace string) iter.Seq[*commandv1.SessionRow] {
	return r.sessions.by(agentsByWorkload, part(namespace))
}

// SessionsOf yields the sessions that an identity holds, by session id.
func (r *Root) SessionsOf(identity string) iter.Seq[*commandv1.SessionRow] {
	return r.sessions.by(sessionsByIdentity, part(identity))
}

// InterceptsOf yields the intercepts that a client session owns, by id.
func (r *Root) InterceptsOf(sessionID string) iter.Seq[*commandv1.InterceptRow] {
	return r.intercepts.by(interceptsBySession, part(sessionID))
}

// InterceptsFor yields the intercepts of a workload, by id.
func (r *Root) InterceptsFor(namespace, workload string) iter.Seq[*commandv1.InterceptRow] {
	return r.intercepts.by(interceptsByWorkload, part(namespace)+part(workload))
}

// WorkloadsOn yields the workloads that have a pod on a node.
func (r *Root) WorkloadsOn(node string) iter.Seq[*commandv1.WorkloadRow] {
	return r.workloads.by(workloadsByNode, part(node))
}
