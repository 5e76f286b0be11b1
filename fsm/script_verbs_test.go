package fsm

import (
	"crypto/sha256"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

// interpreter runs the steps of one script.
type interpreter struct {
	*rig
	cursor *Cursor
	verbs  map[string]func(arguments) string
}

func newInterpreter(t *testing.T) *interpreter {
	in := &interpreter{rig: newRig(t, Options{RingSize: 64})}
	in.cursor = in.m.WatchFrom(in.m.Root())
	command := func(make func(arguments) *commandv1.Command) func(arguments) string {
		return func(a arguments) string { return in.apply(a, make(a)) }
	}
	in.verbs = map[string]func(arguments) string{
		"as":      in.as,
		"wait":    in.wait,
		"term":    in.newTerm,
		"rows":    in.rows,
		"index":   in.indexed,
		"info":    in.info,
		"check":   in.check,
		"resolve": in.resolve,
		"writers": in.writers,

		"init":           command(in.initCluster),
		"server":         command(in.putServer),
		"put":            command(in.putConfig),
		"delete":         command(in.deleteConfig),
		"identity":       command(in.putIdentity),
		"token":          command(in.createToken),
		"enrol":          command(in.consumeToken),
		"revoke":         command(in.revokeToken),
		"arrive-client":  command(in.arriveClient),
		"arrive-agent":   command(in.arriveAgent),
		"depart":         command(in.depart),
		"expire":         command(in.expire),
		"set-generation": command(in.setGeneration),
		"create":         command(in.create),
		"remove":         command(in.remove),
		"review":         command(in.review),
		"set":            command(in.set),
		"put-node":       command(in.putNode),
		"remove-node":    command(in.removeNode),
		"report":         command(in.report),
		"ensure-agent":   command(in.ensureAgent),
		"uninstall":      command(in.uninstall),
		"remove-server":  command(in.removeServer),
		"key":            command(in.putKey),
		"delete-key":     command(in.deleteKey),
		"policy":         command(in.putPolicy),
		"delete-policy":  command(in.deletePolicy),
		"limits":         command(in.setLimits),
		"record":         command(in.recordAudit),
		"audit":          in.audit,
		"nothing":        command(func(arguments) *commandv1.Command { return &commandv1.Command{} }),
	}
	return in
}

func (in *interpreter) run(line string) string {
	a, err := parseArguments(line)
	if err != nil {
		return err.Error()
	}
	verb, ok := in.verbs[a.verb]
	if !ok {
		return "unknown verb " + a.verb
	}
	return verb(a)
}

// apply applies a command and tells its result and events. Any command takes
// req=writer:number:lowest[:digest], term=N and id=ID.
func (in *interpreter) apply(a arguments, c *commandv1.Command) string {
	if req := a.get("req", ""); req != "" {
		parts := strings.Split(req, ":")
		c.RequestId = &commandv1.RequestId{
			Writer: parts[0], Number: number(parts[1]), Lowest: number(parts[2]),
		}
		if len(parts) > 3 {
			c.RequestId.PayloadDigest = []byte(parts[3])
		}
	}
	c.ExpectedTerm = number(a.get("term", "0"))
	if id := a.get("id", ""); id != "" {
		c.StampedId = id
	}
	return in.tell(in.do(c))
}

func (in *interpreter) tell(res *commandv1.Result) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%d %s", res.GetRevision(), strings.TrimPrefix(res.GetCode().String(), "CODE_"))
	for _, text := range []string{res.GetReason(), res.GetMessage()} {
		if text != "" {
			out.WriteString(" " + text)
		}
	}
	if res.GetRepeated() {
		out.WriteString(" (repeated)")
	}
	if h := res.GetHint(); h != "" {
		out.WriteString("\n  hint: " + h)
	}
	batch := in.cursor.Next()
	for _, e := range batch.Events {
		fmt.Fprintf(&out, "\n  %d %v %v %s", e.Revision, e.Op, e.Table, e.Key)
		if e.New != nil {
			fmt.Fprintf(&out, " %s", changed(e))
		}
	}
	return out.String()
}

// changed renders a new row, or what an old one has become.
func changed(e Event) string {
	if e.Old == nil {
		return compact(e.New)
	}
	var parts []string
	was, is := e.Old.ProtoReflect(), e.New.ProtoReflect()
	fields := is.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if was.Has(fd) == is.Has(fd) && was.Get(fd).Equal(is.Get(fd)) {
			continue
		}
		one := is.New()
		if is.Has(fd) {
			one.Set(fd, is.Get(fd))
		}
		if text := compactMessage(one); text != "" {
			parts = append(parts, text)
		} else {
			parts = append(parts, string(fd.Name())+"=")
		}
	}
	return "~ " + strings.Join(parts, " ")
}

func number(s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

func integer(s string) int32 {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil {
		panic(err)
	}
	return int32(n)
}

func duration(s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		panic(err)
	}
	return d
}

func pairs(list []string) map[string]string {
	if len(list) == 0 {
		return nil
	}
	out := map[string]string{}
	for _, item := range list {
		key, value, _ := strings.Cut(item, ":")
		out[key] = value
	}
	return out
}

func enum(values map[string]int32, prefix, name string) int32 {
	n, ok := values[prefix+strings.ToUpper(name)]
	if !ok {
		panic("unknown value " + name)
	}
	return n
}

// Steps that change the surroundings.

func (in *interpreter) as(a arguments) string {
	in.identity = a.pos(0)
	if in.identity == "leader" {
		in.identity = ""
	}
	return ""
}

func (in *interpreter) wait(a arguments) string {
	in.advance(duration(a.pos(0)))
	return ""
}

func (in *interpreter) newTerm(a arguments) string {
	in.term = number(a.pos(0))
	return ""
}

// Steps that look.

func (in *interpreter) rows(a arguments) string {
	root := in.m.Root()
	switch a.pos(0) {
	case "sessions":
		return list(root.Sessions)
	case "intercepts":
		return list(root.Intercepts)
	case "nodes":
		return list(root.Nodes)
	case "workloads":
		return list(root.Workloads)
	case "configs":
		return list(root.Configs)
	case "identities":
		return list(root.Identities)
	case "tokens":
		return list(root.Tokens)
	case "servers":
		return list(root.Servers)
	case "keys":
		return list(root.Keys)
	case "policies":
		return list(root.Policies)
	case "meta":
		return compact(root.Meta())
	}
	return "unknown table"
}

func list[R proto.Message](rows iter.Seq[R]) string {
	var out []string
	for row := range rows {
		out = append(out, compact(row))
	}
	return strings.Join(out, "\n")
}

func (in *interpreter) indexed(a arguments) string {
	root := in.m.Root()
	var ids []string
	switch a.pos(0) {
	case "agents-of":
		for row := range root.AgentsOf(a.pos(1), a.pos(2)) {
			ids = append(ids, row.GetId())
		}
	case "sessions-of":
		for row := range root.SessionsOf(a.pos(1)) {
			ids = append(ids, row.GetId())
		}
	case "intercepts-of":
		for row := range root.InterceptsOf(a.pos(1)) {
			ids = append(ids, row.GetId())
		}
	case "intercepts-for":
		for row := range root.InterceptsFor(a.pos(1), a.pos(2)) {
			ids = append(ids, row.GetId())
		}
	case "workloads-on":
		for row := range root.WorkloadsOn(a.pos(1)) {
			ids = append(ids, workloadKind.key(row))
		}
	}
	return strings.Join(ids, " ")
}

func (in *interpreter) info(a arguments) string {
	row, ok := in.m.Root().Intercept(a.pos(0))
	if !ok {
		return "no such intercept"
	}
	_, visible := AgentView(row)
	return fmt.Sprintf("reader: %s\nagent:  %s visible=%v\nowner:  %s",
		compact(InterceptInfo(row, AudienceReader)),
		compact(InterceptInfo(row, AudienceAgent)), visible,
		compact(InterceptInfo(row, AudienceOwner)))
}

func (in *interpreter) check(a arguments) string {
	c := in.m.Root().CheckConflict(spec(a), a.pos(0))
	if c == nil {
		return "no conflict"
	}
	return c.Message() + "\nhint: " + c.Hint()
}

func (in *interpreter) resolve(a arguments) string {
	row, _ := in.m.Root().Workload(a.pos(0), a.pos(1))
	container, port, err := ResolvePort(row, a.pos(2))
	if err != nil {
		return err.Error()
	}
	return container + " " + compact(port)
}

func (in *interpreter) writers(arguments) string {
	var out []string
	root := in.m.Root()
	for w := range root.writers.all {
		var numbers []string
		root.answersOf(w.key(), func(a *answer) bool {
			numbers = append(numbers, fmt.Sprintf("%d:%s", a.number,
				strings.TrimPrefix(a.result.GetCode().String(), "CODE_")))
			return true
		})
		out = append(out, fmt.Sprintf("%q of %q lowest=%d used=T+%v answers=%v",
			w.name, w.identity, w.lowest, time.Duration(w.usedAt-epoch), numbers))
	}
	return strings.Join(out, "\n")
}

// Steps that make commands.

func (in *interpreter) initCluster(a arguments) *commandv1.Command {
	key := sha256.Sum256([]byte(a.get("key", "key")))
	return &commandv1.Command{Op: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{
		ClusterId: a.pos(0), DedupeKey: key[:number(a.get("size", "32"))],
	}}}
}

func (in *interpreter) putServer(a arguments) *commandv1.Command {
	return &commandv1.Command{Op: &commandv1.Command_PutServer{PutServer: &commandv1.PutServer{
		Server: &commandv1.ServerRow{
			Id: a.pos(0), BootId: a.pos(1), Name: a.get("name", ""), CommandVersion: 1,
		},
		IfModifyRevision: revisionCondition(a),
	}}}
}

func revisionCondition(a arguments) *uint64 {
	if s := a.get("if", ""); s != "" {
		return proto.Uint64(number(s))
	}
	return nil
}

func (in *interpreter) putConfig(a arguments) *commandv1.Command {
	value := a.pos(1)
	if n := number(a.get("size", "0")); n > 0 {
		value = strings.Repeat("x", int(n))
	}
	return &commandv1.Command{Op: &commandv1.Command_PutConfig{PutConfig: &commandv1.PutConfig{
		Key: a.pos(0), Value: []byte(value), IfModifyRevision: revisionCondition(a),
	}}}
}

func (in *interpreter) deleteConfig(a arguments) *commandv1.Command {
	return &commandv1.Command{Op: &commandv1.Command_DeleteConfig{DeleteConfig: &commandv1.DeleteConfig{
		Key: a.pos(0), IfModifyRevision: revisionCondition(a),
	}}}
}

func (in *interpreter) putIdentity(a arguments) *commandv1.Command {
	return &commandv1.Command{Op: &commandv1.Command_PutIdentity{PutIdentity: &commandv1.PutIdentity{
		Uri: a.pos(0), Denied: a.has("denied"), Reason: a.get("reason", ""),
	}}}
}

func secretHash(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

func (in *interpreter) createToken(a arguments) *commandv1.Command {
	return &commandv1.Command{Op: &commandv1.Command_CreateToken{CreateToken: &commandv1.CreateToken{
		Id: a.pos(0), SecretHash: secretHash(a.get("secret", "secret"))[:number(a.get("size", "32"))],
		Role: a.get("role", ""), NameGlob: a.get("names", "*"), Uses: uint32(number(a.get("uses", "1"))),
		ExpiresAt: in.now + int64(duration(a.get("for", "1h"))),
	}}}
}

func (in *interpreter) consumeToken(a arguments) *commandv1.Command {
	return &commandv1.Command{Op: &commandv1.Command_ConsumeToken{ConsumeToken: &commandv1.ConsumeToken{
		Id: a.pos(0), SecretHash: secretHash(a.get("secret", "secret")), Role: a.get("role", ""),
		Name: a.get("name", ""), KeyDigest: []byte(a.get("key", "")),
	}}}
}

func (in *interpreter) revokeToken(a arguments) *commandv1.Command {
	return &commandv1.Command{Op: &commandv1.Command_RevokeToken{RevokeToken: &commandv1.RevokeToken{
		Id: a.pos(0),
	}}}
}

func (in *interpreter) arriveClient(a arguments) *commandv1.Command {
	return &commandv1.Command{
		StampedId: a.pos(0),
		Op: &commandv1.Command_ArriveClient{ArriveClient: &commandv1.ArriveClient{
			Info: &manager.ClientInfo{
				Name: a.get("name", a.pos(0)), InstallId: a.get("install", "i"),
				Product: a.get("product", "telepresence"), Version: a.get("client-version", "2.14.0"),
			},
			Compat: a.has("compat"),
		}},
	}
}

func (in *interpreter) arriveAgent(a arguments) *commandv1.Command {
	info := &manager.AgentInfo{
		Name: a.pos(0), Namespace: a.get("ns", "default"), PodUid: a.get("uid", ""),
		PodName: a.get("pod", "pod-"+a.get("uid", "")), PodIp: a.get("ip", ""),
		ApiPort: integer(a.get("api", "0")), Product: a.get("product", "telepresence"),
		Version: a.get("agent-version", "1"),
	}
	for m := range strings.SplitSeq(a.get("mechanisms", "tcp"), ",") {
		name, version, ok := strings.Cut(m, "@")
		if !ok {
			version = "1"
		}
		product := "telepresence"
		if name == "unmade" {
			product = ""
		}
		if name != "none" {
			info.Mechanisms = append(info.Mechanisms, &manager.AgentInfo_Mechanism{
				Name: name, Product: product, Version: version,
			})
		}
	}
	return &commandv1.Command{Op: &commandv1.Command_ArriveAgent{ArriveAgent: &commandv1.ArriveAgent{
		Info: info, SessionId: a.get("session", ""), Compat: a.has("compat"),
	}}}
}

func (in *interpreter) depart(a arguments) *commandv1.Command { return cmdDepart(a.pos(0)) }

// expire names sessions as the leader saw them: id or id@revision.
func (in *interpreter) expire(a arguments) *commandv1.Command {
	op := &commandv1.ExpireSessions{}
	for _, arg := range a.positional {
		id, seen, ok := strings.Cut(arg, "@")
		item := &commandv1.ExpireSessions_Item{SessionId: id}
		if ok {
			item.SeenModifyRevision = number(seen)
		} else if row, ok := in.m.Root().Session(id); ok {
			item.SeenModifyRevision = row.GetModifyRevision()
		}
		op.Items = append(op.Items, item)
	}
	return &commandv1.Command{Op: &commandv1.Command_ExpireSessions{ExpireSessions: op}}
}

func (in *interpreter) setGeneration(a arguments) *commandv1.Command {
	return &commandv1.Command{Op: &commandv1.Command_SetGeneration{SetGeneration: &commandv1.SetGeneration{
		SessionId:  a.pos(0),
		Generation: commandv1.Generation(enum(commandv1.Generation_value, "GENERATION_", a.pos(1))),
	}}}
}

// spec makes an intercept spec of the arguments after the first, the session.
func spec(a arguments) *manager.InterceptSpec {
	return &manager.InterceptSpec{
		Name: a.pos(1), Client: a.get("client", a.pos(0)), Agent: a.get("agent", "hello"),
		Namespace: a.get("ns", "default"), Mechanism: a.get("mechanism", "tcp"),
		TargetHost: a.get("host", ""), ContainerPort: integer(a.get("cport", "0")),
		PortIdentifier: a.get("port", ""), Protocol: a.get("protocol", ""),
		ContainerName: a.get("container", ""), HeaderFilters: pairs(a.named["header"]),
		PathFilters: a.named["path"], PodPorts: a.named["pod-port"],
		Wiretap: a.has("wiretap"), Replace: a.has("replace"), NoDefaultPort: a.has("no-default-port"),
	}
}

func (in *interpreter) create(a arguments) *commandv1.Command {
	return &commandv1.Command{Op: &commandv1.Command_CreateIntercept{CreateIntercept: &commandv1.CreateIntercept{
		SessionId: a.pos(0), Spec: spec(a), Force: a.has("force"),
		Lease: int64(duration(a.get("lease", "0"))),
	}}}
}

func (in *interpreter) remove(a arguments) *commandv1.Command {
	return &commandv1.Command{Op: &commandv1.Command_RemoveIntercept{RemoveIntercept: &commandv1.RemoveIntercept{
		SessionId: a.pos(0), Name: a.pos(1), Id: a.get("intercept", ""),
	}}}
}

func disposition(s string) manager.InterceptDispositionType {
	return manager.InterceptDispositionType(enum(manager.InterceptDispositionType_value, "", s))
}

func (in *interpreter) review(a arguments) *commandv1.Command {
	return &commandv1.Command{Op: &commandv1.Command_ReviewIntercept{ReviewIntercept: &commandv1.ReviewIntercept{
		Review: &manager.ReviewInterceptRequest{
			Session: &manager.SessionInfo{SessionId: a.pos(0)}, Id: a.pos(1),
			Disposition: disposition(a.pos(2)), Message: a.get("message", ""),
			PodIp: a.get("ip", ""), Environment: pairs(a.named["env"]),
			MechanismArgsDesc: a.get("desc", ""), MountPoint: a.get("mount", ""),
			SftpPort: integer(a.get("sftp", "0")),
		},
	}}}
}

func (in *interpreter) set(a arguments) *commandv1.Command {
	row, _ := in.m.Root().Intercept(a.pos(0))
	op := &commandv1.SetIntercept{
		Id: a.pos(0), SeenModifyRevision: row.GetModifyRevision(),
		Disposition: disposition(a.get("disposition", "UNSPECIFIED")), Message: a.get("message", ""),
		OwnerState: commandv1.OwnerState(enum(commandv1.OwnerState_value, "OWNER_STATE_",
			a.get("owner", "UNSPECIFIED"))),
		ClearAgent: a.has("clear-agent"), Remove: a.has("remove"),
	}
	if s := a.get("seen", ""); s != "" {
		op.SeenModifyRevision = number(s)
	}
	return &commandv1.Command{Op: &commandv1.Command_SetIntercept{SetIntercept: op}}
}

func (in *interpreter) putNode(a arguments) *commandv1.Command {
	return &commandv1.Command{Op: &commandv1.Command_PutNode{PutNode: &commandv1.PutNode{
		Node: &commandv1.NodeRow{Name: a.pos(0), BootId: a.get("boot", "")},
	}}}
}

func (in *interpreter) removeNode(a arguments) *commandv1.Command {
	return &commandv1.Command{Op: &commandv1.Command_RemoveNode{RemoveNode: &commandv1.RemoveNode{
		Name: a.pos(0),
	}}}
}

// report takes workloads as ns/name=pod,pod…@container:port,port… with ports
// as [name:]number[/protocol].
func (in *interpreter) report(a arguments) *commandv1.Command {
	op := &commandv1.ReportWorkloads{Node: a.pos(0)}
	for _, arg := range a.positional[1:] {
		key, rest, _ := strings.Cut(arg, "=")
		ns, name, _ := strings.Cut(key, "/")
		podNames, ports, _ := strings.Cut(rest, "@")
		w := &commandv1.WorkloadReport{Namespace: ns, Name: name, Kind: a.get("kind", "Process")}
		for _, pod := range strings.FieldsFunc(podNames, func(c rune) bool { return c == ',' }) {
			p := &commandv1.Pod{Name: pod, Uid: "uid-" + pod}
			if ports != "" {
				p.Containers = containers(ports)
			}
			w.Pods = append(w.Pods, p)
		}
		op.Workloads = append(op.Workloads, w)
	}
	return &commandv1.Command{Op: &commandv1.Command_ReportWorkloads{ReportWorkloads: op}}
}

// TestEveryOperationHasAVerb keeps the scripts able to tell any story.
func TestEveryOperationHasAVerb(t *testing.T) {
	t.Parallel()
	in := newInterpreter(t)
	ops := (&commandv1.Command{}).ProtoReflect().Descriptor().Oneofs().ByName("op").Fields()
	names := []string{
		"init", "server", "put", "delete", "identity", "token", "enrol", "revoke",
		"arrive-client", "arrive-agent", "depart", "expire", "set-generation", "create", "remove",
		"review", "set", "put-node", "remove-node", "report", "ensure-agent", "uninstall",
		"remove-server", "key", "delete-key", "policy", "delete-policy", "limits", "record",
	}
	if ops.Len() != len(names) || ops.Len() != len(appliers) {
		t.Errorf("%d operations, %d verbs, %d appliers", ops.Len(), len(names), len(appliers))
	}
	for _, name := range names {
		if in.verbs[name] == nil {
			t.Errorf("no verb %q", name)
		}
	}
}
