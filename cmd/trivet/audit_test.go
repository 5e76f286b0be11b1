package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"trivet/fsm"
	commandv1 "trivet/proto/trivet/command/v1"
)

// onRecord fills the audit with what a real state machine records of some
// commands: three of class security, two of class action.
func onRecord(t *testing.T, r *rig) {
	t.Helper()
	m := fsm.New(fsm.Options{})
	identity := func(denied bool) *commandv1.Command {
		return &commandv1.Command{Op: &commandv1.Command_PutIdentity{PutIdentity: &commandv1.PutIdentity{
			Uri: "spiffe://test/client/eve", Denied: denied, Reason: "left the team",
		}}}
	}
	config := func(key string) *commandv1.Command {
		return &commandv1.Command{Op: &commandv1.Command_PutConfig{PutConfig: &commandv1.PutConfig{Key: key, Value: []byte("not shown")}}}
	}
	for i, c := range []*commandv1.Command{identity(true), config("trivet/a"), identity(false), config("trivet/b"), identity(true)} {
		c.Version, c.Time, c.Identity = fsm.CommandVersion, now.Add(time.Duration(i)*time.Second).UnixNano(), "spiffe://test/operator/olga"
		if _, err := m.Apply(fsm.Position{Index: uint64(i + 1), Term: 1}, &commandv1.Entry{Commands: []*commandv1.Command{c}}); err != nil {
			t.Fatal(err)
		}
	}
	r.f.Change(func() {
		for _, class := range []commandv1.AuditClass{commandv1.AuditClass_AUDIT_CLASS_SECURITY, commandv1.AuditClass_AUDIT_CLASS_ACTION} {
			for row := range m.Root().Audit(class, 0) {
				r.f.Audit = append(r.f.Audit, row)
			}
		}
		r.f.AuditHeads = m.Root().Meta().GetAudit()
	})
}

func TestAuditCommands(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	furnish(r)
	r.golden("audit-empty", "audit list", "audit verify")
	onRecord(t, r)
	r.golden("audit", "audit list", "audit list -o wide", "audit list --class action -o json", "audit list --class security --after 2 -o jsonl",
		"audit list --class gossip", "audit export", "audit verify", "audit verify -o json", "audit verify nowhere.jsonl", "audit verify x --class action")
}

func TestVerifyTellsTheFirstBrokenRecord(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	furnish(r)
	onRecord(t, r)
	out, errOut, code := r.run("audit", "export")
	if code != 0 {
		t.Fatalf("export: exit %d, %s", code, errOut)
	}
	lines := strings.SplitAfter(strings.TrimSuffix(out, "\n"), "\n")
	if len(lines) != 7 { // 5 records, 2 heads
		t.Fatalf("an export of %d lines:\n%s", len(lines), out)
	}
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	verify := func(lines ...string) (string, string, int) {
		t.Helper()
		if err := os.WriteFile(path, []byte(strings.Join(lines, "")), 0o600); err != nil {
			t.Fatal(err)
		}
		return r.run("audit", "verify", path)
	}
	if out, errOut, code := verify(lines...); code != 0 || strings.Count(out, "whole") != 2 {
		t.Errorf("as it was exported: exit %d\n%s%s", code, out, errOut)
	}
	without := func(i int) []string { return append(append([]string{}, lines[:i]...), lines[i+1:]...) }
	changed := func(i int, from, to string) []string {
		out := append([]string{}, lines...)
		if out[i] = strings.Replace(out[i], from, to, 1); out[i] == lines[i] {
			t.Fatalf("line %d has no %q: %s", i+1, from, lines[i])
		}
		return out
	}
	for name, c := range map[string]struct {
		lines []string
		code  int
		want  string
	}{
		"a text is changed":         {changed(1, "eve", "bob"), 1, "class security: record 2 was changed after it was made"},
		"it is said where":          {changed(1, "eve", "bob"), 1, "(line 2 of " + path + ")"},
		"two are changed":           {changed(2, "left", "joined"), 1, "record 3 was changed"},
		"one is missing":            {without(1), 1, "class security: record 3 follows record 1: some are missing"},
		"the last one is missing":   {without(2), 1, "class security: the last record is 2, the chain's head is record 3"},
		"the heads are missing":     {lines[:5], 1, "without the head of the chain: the end is missing"},
		"it ends within a line":     {append(append([]string{}, lines[:3]...), lines[3][:40]), 2, "read line 4"},
		"it is something else":      {[]string{"hello\n"}, 2, "read line 1"},
		"it is empty":               {nil, 2, "is empty"},
		"a field that is not known": {changed(4, `"number"`, `"nummer"`), 2, "read line 5"},
	} {
		out, errOut, code := verify(c.lines...)
		if code != c.code || !strings.Contains(errOut, c.want) || !strings.Contains(errOut, "Hint:") || out != "" {
			t.Errorf("%s: exit %d, want %d and %q:\n%s%s", name, code, c.code, c.want, out, errOut)
		}
	}
	// Exports that follow each other are one chain.
	_, _, code = verify(append(append([]string{}, lines[:2]...), "{\"head\":"+strings.TrimSpace(fmt.Sprintf(
		`{"class":"AUDIT_CLASS_SECURITY","number":"2","hash":%q,"oldest":"1"}`, hashOf(t, lines[1])))+"}\n", lines[2], lines[3], lines[4], lines[5], lines[6])...)
	if code != 0 {
		t.Errorf("two exports after each other: exit %d", code)
	}
}

// hashOf takes the hash out of an exported record.
func hashOf(t *testing.T, line string) string {
	t.Helper()
	_, rest, ok := strings.Cut(line, `"hash":"`)
	hash, _, _ := strings.Cut(rest, `"`)
	if !ok || hash == "" {
		t.Fatalf("no hash in %s", line)
	}
	return hash
}

func TestVerifyOfTheClusterFindsWhatAServerChanged(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		damage func(r *rig)
		want   string
	}{
		"a record":              {func(r *rig) { r.f.Audit[1] = altered(r.f.Audit[1]) }, "record 2 was changed after it was made"},
		"the newest is missing": {func(r *rig) { r.f.Audit = append(r.f.Audit[:2:2], r.f.Audit[3:]...) }, "the last record is 2"},
		"the oldest is missing": {func(r *rig) { r.f.Audit = r.f.Audit[1:] }, "the oldest record is 2, not 1"},
	} {
		r := newRig(t, 1)
		furnish(r)
		onRecord(t, r)
		r.f.Change(func() { c.damage(r) })
		out, errOut, code := r.run("audit", "verify")
		if code != 1 || !strings.Contains(errOut, c.want) {
			t.Errorf("%s: exit %d\n%s%s", name, code, out, errOut)
		}
	}
}

func altered(r *commandv1.AuditRow) *commandv1.AuditRow {
	r = proto.CloneOf(r)
	r.Detail += "!"
	return r
}

func TestLimitsCommands(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	furnish(r)
	r.golden("limits", "operator limits get", "operator limits get -o json", "operator limits set sessionsPerIdentity=3 nodes=7",
		"operator limits set sesionsPerIdentity=3", "operator limits set nodes", "operator limits set nodes=-1", "operator limits set nodes=4294967296",
		"operator limits set", "operator limits get -o jsonl")
}

func TestPolicyCommands(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	furnish(r)
	r.golden("policy", "policy list",
		"policy set readers --order 10 --identities spiffe://test/client/* --allow copy --withhold-env *_TOKEN",
		"policy set payments --namespaces payments --allow steal,replace --require-filter --max-duration 2h -o json",
		"policy list", "policy list -o wide", "policy list -o json", "policy set x --allow everything", "policy set",
		"policy delete readers", "policy delete readers", "policy list")
}
