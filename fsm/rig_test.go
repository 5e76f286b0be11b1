package fsm

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

// epoch is the time at which tests begin.
const epoch = int64(1_700_000_000_000_000_000)

// rig drives a machine the way a leader does: it stamps commands and puts each
// of them into an entry of its own.
type rig struct {
	tb       testing.TB
	m        *Machine
	index    uint64
	term     uint64
	now      int64
	stamps   int
	identity string
}

func newRig(tb testing.TB, o Options) *rig {
	return &rig{tb: tb, m: New(o), term: 1, now: epoch}
}

// stamp fills in what the leader adds.
func (r *rig) stamp(c *commandv1.Command) *commandv1.Command {
	if c.Version == 0 {
		c.Version = CommandVersion
	}
	if c.Time == 0 {
		c.Time = r.now
	}
	if c.StampedId == "" {
		r.stamps++
		c.StampedId = fmt.Sprintf("id-%d", r.stamps)
	}
	if c.Identity == "" {
		c.Identity = r.identity
	}
	return c
}

// entry applies stamped commands as one log entry.
func (r *rig) entry(commands ...*commandv1.Command) []*commandv1.Result {
	r.tb.Helper()
	r.index++
	results, err := r.m.Apply(Position{Index: r.index, Term: r.term}, &commandv1.Entry{Commands: commands})
	if err != nil {
		r.tb.Fatalf("apply: %v", err)
	}
	return results
}

// do applies one command in an entry of its own and checks the whole state.
func (r *rig) do(c *commandv1.Command) *commandv1.Result {
	r.tb.Helper()
	res := r.entry(r.stamp(c))[0]
	if err := r.m.Root().Verify(); err != nil {
		r.tb.Fatalf("after %v: %v", compact(c), err)
	}
	return res
}

// ok is do for commands that must succeed.
func (r *rig) ok(c *commandv1.Command) *commandv1.Result {
	r.tb.Helper()
	res := r.do(c)
	if res.GetCode() != commandv1.Code_CODE_OK {
		r.tb.Fatalf("%v: %v", compact(c), compact(res))
	}
	return res
}

func (r *rig) advance(d time.Duration) { r.now += int64(d) }

// Constructors of commands.

func cmdArriveClient(name string) *commandv1.Command {
	return &commandv1.Command{
		StampedId: name,
		Op: &commandv1.Command_ArriveClient{ArriveClient: &commandv1.ArriveClient{
			Info: &manager.ClientInfo{
				Name: name, InstallId: "install-" + name, Product: "telepresence", Version: "2.14.0",
				Namespace: "default",
			},
		}},
	}
}

func agentInfo(workload, uid string) *manager.AgentInfo {
	return &manager.AgentInfo{
		Name: workload, Namespace: "default", PodName: "pod-" + uid, PodUid: uid, PodIp: "10.0.0.1",
		Product: "telepresence", Version: "2.14.0", ApiPort: 9900,
		Mechanisms: []*manager.AgentInfo_Mechanism{
			{Name: "tcp", Product: "telepresence", Version: "2.14.0"},
		},
	}
}

func cmdArriveAgent(info *manager.AgentInfo) *commandv1.Command {
	return &commandv1.Command{
		Op: &commandv1.Command_ArriveAgent{ArriveAgent: &commandv1.ArriveAgent{Info: info}},
	}
}

func cmdDepart(id string) *commandv1.Command {
	return &commandv1.Command{Op: &commandv1.Command_Depart{Depart: &commandv1.Depart{SessionId: id}}}
}

func cmdCreate(session string, spec *manager.InterceptSpec) *commandv1.Command {
	return &commandv1.Command{Op: &commandv1.Command_CreateIntercept{
		CreateIntercept: &commandv1.CreateIntercept{SessionId: session, Spec: spec},
	}}
}

func interceptSpec(client, name, workload string, port int32) *manager.InterceptSpec {
	return &manager.InterceptSpec{
		Name: name, Client: client, Agent: workload, Namespace: "default", Mechanism: "tcp",
		TargetHost: "127.0.0.1", TargetPort: 8080, ContainerPort: port, Protocol: "TCP",
	}
}

func cmdReview(agent, id string, d manager.InterceptDispositionType) *commandv1.Command {
	return &commandv1.Command{Op: &commandv1.Command_ReviewIntercept{
		ReviewIntercept: &commandv1.ReviewIntercept{Review: &manager.ReviewInterceptRequest{
			Session: &manager.SessionInfo{SessionId: agent}, Id: id, Disposition: d,
			PodIp: "10.0.0.1", Environment: map[string]string{"SECRET": "s3cret", "B": "2"},
		}},
	}}
}

func cmdPutConfig(key, value string) *commandv1.Command {
	return &commandv1.Command{Op: &commandv1.Command_PutConfig{
		PutConfig: &commandv1.PutConfig{Key: key, Value: []byte(value)},
	}}
}

func withRequest(c *commandv1.Command, writer string, number, lowest uint64) *commandv1.Command {
	c.RequestId = &commandv1.RequestId{
		Writer: writer, Number: number, Lowest: lowest, PayloadDigest: []byte("digest"),
	}
	return c
}

// compact renders a message on one line, fields by number, times relative to
// the epoch of the tests.
func compact(m proto.Message) string {
	if m == nil {
		return "-"
	}
	return compactMessage(m.ProtoReflect())
}

func compactMessage(m protoreflect.Message) string {
	var fields []protoreflect.FieldDescriptor
	m.Range(func(fd protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		fields = append(fields, fd)
		return true
	})
	slices.SortFunc(fields, func(a, b protoreflect.FieldDescriptor) int {
		return int(a.Number()) - int(b.Number())
	})
	var parts []string
	for _, fd := range fields {
		v := m.Get(fd)
		var text string
		switch {
		case fd.IsList():
			var items []string
			for i := range v.List().Len() {
				items = append(items, compactValue(fd, v.List().Get(i)))
			}
			text = "[" + strings.Join(items, " ") + "]"
		case fd.IsMap():
			var items []string
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				items = append(items, k.String()+":"+compactValue(fd.MapValue(), v))
				return true
			})
			slices.Sort(items)
			text = "{" + strings.Join(items, " ") + "}"
		default:
			text = compactValue(fd, v)
		}
		parts = append(parts, string(fd.Name())+"="+text)
	}
	return strings.Join(parts, " ")
}

func compactValue(fd protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch fd.Kind() {
	case protoreflect.MessageKind:
		return "{" + compactMessage(v.Message()) + "}"
	case protoreflect.EnumKind:
		if e := fd.Enum().Values().ByNumber(v.Enum()); e != nil {
			return string(e.Name())
		}
		return fmt.Sprint(v.Enum())
	case protoreflect.BytesKind:
		if n := len(v.Bytes()); n > 64 {
			return fmt.Sprintf("<%d bytes>", n)
		}
		if isText(v.Bytes()) {
			return fmt.Sprintf("%q", v.Bytes())
		}
		return hex.EncodeToString(v.Bytes())
	case protoreflect.StringKind:
		if s := v.String(); strings.ContainsAny(s, " \"\n") || s == "" {
			return fmt.Sprintf("%q", s)
		}
		return v.String()
	case protoreflect.Int64Kind:
		if name := string(fd.Name()); strings.HasSuffix(name, "_at") || name == "lease_until" || name == "time" {
			return "T+" + time.Duration(v.Int()-epoch).String()
		}
	}
	return v.String()
}

func isText(b []byte) bool {
	return !slices.ContainsFunc(b, func(c byte) bool { return c < ' ' || c > '~' })
}
