package fsm

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	commandv1 "trivet/proto/trivet/command/v1"
)

// counted is what the limits are about, by limit and whose it is.
type counted map[[2]string]uint64

func count(root *Root) counted {
	out := counted{}
	for row := range root.Sessions {
		switch {
		case row.GetIdentity() == "":
		case row.GetKind() == commandv1.SessionKind_SESSION_KIND_CLIENT:
			out[[2]string{"sessions_per_identity", row.GetIdentity()}]++
		default:
			out[[2]string{"agents_per_node", row.GetIdentity()}]++
		}
	}
	for row := range root.Intercepts {
		if row.GetIdentity() != "" {
			out[[2]string{"intercepts_per_identity", row.GetIdentity()}]++
			out[[2]string{"intercepts_per_namespace", row.GetSpec().GetNamespace()}]++
		}
	}
	for row := range root.Configs {
		out[[2]string{"config_keys"}]++
		out[[2]string{"config_bytes"}] += uint64(len(row.GetValue()))
	}
	out[[2]string{"tokens"}] = uint64(root.Len(TableTokens))
	out[[2]string{"policies"}] = uint64(root.Len(TablePolicies))
	out[[2]string{"nodes"}] = uint64(root.Len(TableNodes))
	return out
}

// TestNothingGrowsAboveItsLimit applies arbitrary commands under small limits
// that change now and then. A limit may be lower than what is there already,
// but then it does not grow.
func TestNothingGrowsAboveItsLimit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := New(Options{})
		now := epoch
		for range rapid.IntRange(1, 80).Draw(t, "commands") {
			c := genCommand(t, now)
			c.Version = CommandVersion
			if rapid.IntRange(0, 9).Draw(t, "limit") == 0 {
				c.Identity, c.Op = "", &commandv1.Command_SetLimits{SetLimits: &commandv1.SetLimits{Limits: genLimits(t)}}
			}
			now = max(now, c.GetTime())
			before, command := count(m.Root()), compact(c)
			if _, err := m.Apply(Position{Term: 1}, &commandv1.Entry{Commands: []*commandv1.Command{c}}); err != nil {
				t.Fatal(err)
			}
			root := m.Root()
			limits := root.EffectiveLimits().ProtoReflect()
			for what, n := range count(root) {
				limit := limits.Get(limits.Descriptor().Fields().ByName(protoreflect.Name(what[0]))).Uint()
				// Owners that are nobody's do not count, but share the namespace.
				if n > limit && n > before[what] {
					t.Fatalf("%v is %d after %s, the limit is %d", what, n, command, limit)
				}
			}
			if restoredLimits := limitsOf(root.Meta()); !proto.Equal(restoredLimits, root.EffectiveLimits()) {
				t.Fatalf("the limits are not those of the meta row")
			}
		}
	})
}

func genLimits(t *rapid.T) *commandv1.Limits {
	l := &commandv1.Limits{}
	fields := l.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		n := rapid.Uint32Range(0, 3).Draw(t, string(fields.Get(i).Name()))
		v := protoreflect.ValueOfUint32(n)
		if fields.Get(i).Kind() == protoreflect.Uint64Kind {
			v = protoreflect.ValueOfUint64(uint64(n))
		}
		if n > 0 {
			l.ProtoReflect().Set(fields.Get(i), v)
		}
	}
	return l
}

// TestEveryLimitHasADefault: 0 would allow nothing.
func TestEveryLimitHasADefault(t *testing.T) {
	t.Parallel()
	l := DefaultLimits().ProtoReflect()
	fields := l.Descriptor().Fields()
	for i := range fields.Len() {
		if !l.Has(fields.Get(i)) {
			t.Errorf("%s has no default", fields.Get(i).Name())
		}
	}
	root := New(Options{}).Root()
	root.EffectiveLimits().Nodes = 1
	if root.EffectiveLimits().GetNodes() != DefaultLimits().GetNodes() {
		t.Error("a reader changed the limits")
	}
}
