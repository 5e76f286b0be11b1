package fsm

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

// TestVerifyFindsDamage damages a state behind the machine's back.
func TestVerifyFindsDamage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		damage func(*Root)
		want   string
	}{
		"row changed in place": {
			func(r *Root) {
				row, _ := r.Config("greeting")
				row.Value = []byte("tampered")
			},
			"modified after it was stored",
		},
		"row renamed in place": {
			func(r *Root) {
				row, _ := r.Config("greeting")
				row.Key = "other"
			},
			`stored under "greeting"`,
		},
		"row lost": {
			func(r *Root) { r.configs.rows.Delete("greeting") },
			"the digest kept is not that of the rows",
		},
		"digest off": {
			func(r *Root) { r.sum[0]++ },
			"the digest kept is not that of the rows",
		},
		"row from the future": {
			func(r *Root) { r.revision = 3 },
			"at revision 3",
		},
		"index entry lost": {
			func(r *Root) {
				key, _, _ := r.sessions.indexes[agentsByWorkload].Min()
				r.sessions.indexes[agentsByWorkload].Delete(key)
			},
			"has 0 entries, not 1",
		},
		"index entry for nothing": {
			func(r *Root) { r.intercepts.indexes[interceptsBySession].Set("x", "y") },
			"for nothing",
		},
		"client without its introduction": {
			func(r *Root) { store(r, &r.sessions, &commandv1.SessionRow{Id: "dave"}) },
			"neither a client nor an agent",
		},
		"intercept without a session": {
			func(r *Root) {
				store(r, &r.intercepts, &commandv1.InterceptRow{
					Id: "dave:one", SessionId: "dave", Spec: &manager.InterceptSpec{Name: "one"},
				})
			},
			"has no client session",
		},
		"two keys in use": {
			func(r *Root) { store(r, &r.keys, &commandv1.KeyRow{Id: "issuing/2", Kind: "issuing", Active: true}) },
			`two keys of kind "issuing" are active`,
		},
		"audit record lost": {
			func(r *Root) { r.audit.remove(&r.sum, auditKey(security, 1)) },
			"its head names",
		},
		"audit record rewritten": {
			func(r *Root) {
				row, _ := r.audit.get(auditKey(security, 1))
				row = edit(row)
				row.Subject = "nothing to see"
				store(r, &r.audit, row)
			},
			"was changed after it was made",
		},
		"answer without a writer": {
			func(r *Root) {
				store(r, &r.answers, &answer{writer: "nobody", number: 1, result: &commandv1.Result{}})
			},
			"belongs to no writer",
		},
		"writer that counts wrong": {
			func(r *Root) {
				for w := range r.writers.all {
					w.answers++
				}
			},
			"is malformed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Options{})
			populate(r)
			c.damage(r.m.work)
			err := r.m.work.Verify()
			var broken *InvariantError
			if !errors.As(err, &broken) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v", err)
			}
		})
	}
}

// store puts a row where no command would.
func store[R any](r *Root, t *table[R], row R) {
	t.set(newEncoder(), &r.sum, t.kind.key(row), row)
}

// TestSnapshotOfUnreadableRowsIsNotWritten: a reader would refuse them.
func TestSnapshotOfUnreadableRowsIsNotWritten(t *testing.T) {
	t.Parallel()
	bad := "\xff"
	for name, c := range map[string]struct {
		damage func(*Root)
		want   string
	}{
		"row": {
			func(r *Root) { store(r, &r.configs, &commandv1.ConfigRow{Key: bad}) }, "UTF-8",
		},
		"answer": {
			func(r *Root) {
				w := &writer{name: "w", answers: 1}
				store(r, &r.writers, w)
				store(r, &r.answers, &answer{
					writer: w.key(), number: 1, result: &commandv1.Result{Message: bad},
				})
			},
			"UTF-8",
		},
		"meta row": {
			func(r *Root) { r.meta.ClusterId = bad }, "UTF-8",
		},
		"frame": {
			func(r *Root) {
				store(r, &r.configs, &commandv1.ConfigRow{Key: "a", Value: make([]byte, maxFrame)})
			},
			"larger than",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := New(Options{})
			c.damage(m.work)
			s := &Snapshot{root: m.work}
			if _, err := s.WriteTo(&strings.Builder{}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v", err)
			}
		})
	}
}

func TestLookups(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	populate(r)
	root := r.m.Root()
	for name, get := range map[string]func(string) (proto.Message, bool){
		"alice":                     lookup(root.Session),
		"alice:one":                 lookup(root.Intercept),
		"n1":                        lookup(root.Node),
		"greeting":                  lookup(root.Config),
		"spiffe://c/client/mallory": lookup(root.Identity),
		"t1":                        lookup(root.Token),
		"s1":                        lookup(root.Server),
	} {
		if _, ok := get(name); !ok {
			t.Errorf("%s is not found", name)
		}
		if _, ok := get("ghost"); ok {
			t.Errorf("a ghost of %s is found", name)
		}
	}
	if _, ok := root.Workload("default", "web"); !ok {
		t.Error("the workload is not found")
	}
}

func lookup[R proto.Message](get func(string) (R, bool)) func(string) (proto.Message, bool) {
	return func(key string) (proto.Message, bool) {
		row, ok := get(key)
		return row, ok
	}
}

func TestTextsAreBounded(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 600)
	r := newRig(t, Options{})
	for name, c := range map[string]*commandv1.Command{
		"config key": cmdPutConfig(long, "v"),
		"node":       {Op: &commandv1.Command_PutNode{PutNode: &commandv1.PutNode{Node: &commandv1.NodeRow{Name: long}}}},
		"token": {Op: &commandv1.Command_CreateToken{CreateToken: &commandv1.CreateToken{
			Id: long, SecretHash: secretHash("s"), Role: "client", NameGlob: "*", Uses: 1, ExpiresAt: r.now + 1,
		}}},
	} {
		if res := r.do(c); res.GetReason() != ReasonInvalid || !strings.Contains(res.GetMessage(), "longer than") {
			t.Errorf("%s: %v", name, compact(res))
		}
	}
}
