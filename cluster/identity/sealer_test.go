package identity

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"trivet/fsm"
	"trivet/internal/errs"
	"trivet/internal/seal"
	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

func newSealer(t *testing.T) *Sealer {
	t.Helper()
	ring, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	return NewSealer(ring, fsm.New(fsm.Options{}).Root, slog.New(slog.DiscardHandler))
}

func TestEnvironmentCodec(t *testing.T) {
	t.Parallel()
	for _, envs := range []environments{
		{},
		{"": {}},
		{"": {"A": "1", "B": "", "": "x"}, "/app": {"A": strings.Repeat("x", 1000)}, "/b": {}},
	} {
		got, err := decode(encode(envs))
		if d := cmp.Diff(envs, got); err != nil || d != "" {
			t.Errorf("%v\n%s", err, d)
		}
	}
	whole := encode(environments{"": {"KEY": "value"}, "/app": {"A": "1"}})
	for n := range whole {
		if _, err := decode(whole[:n]); err == nil {
			t.Errorf("%d of %d bytes were read", n, len(whole))
		}
	}
}

func FuzzDecodeEnvironment(f *testing.F) {
	f.Add(encode(environments{"": {"KEY": "value"}, "/app": {"A": "1"}}))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, data []byte) {
		envs, err := decode(data)
		if err != nil {
			return
		}
		again, err := decode(encode(envs))
		if d := cmp.Diff(envs, again); err != nil || d != "" {
			t.Errorf("%v\n%s", err, d)
		}
	})
}

// TestSealingReplacesAndDoesNotChange: the request stays the caller's.
func TestSealingReplacesAndDoesNotChange(t *testing.T) {
	t.Parallel()
	s := newSealer(t)
	env := map[string]string{"PASSWORD": "canary"}
	for name, cmd := range map[string]*commandv1.Command{
		"review": {Op: &commandv1.Command_ReviewIntercept{ReviewIntercept: &commandv1.ReviewIntercept{
			Review: &manager.ReviewInterceptRequest{Id: "s:one", Environment: env},
		}}},
		"agent": {Op: &commandv1.Command_ArriveAgent{ArriveAgent: &commandv1.ArriveAgent{Info: &manager.AgentInfo{
			Name: "echo", Environment: env, Containers: map[string]*manager.AgentInfo_ContainerInfo{"app": {Environment: env, MountPoint: "/m"}},
		}}}},
		"report": {Op: &commandv1.Command_ReportWorkloads{ReportWorkloads: &commandv1.ReportWorkloads{Workloads: []*commandv1.WorkloadReport{{
			Name: "echo", Pods: []*commandv1.Pod{{Uid: "u", Containers: []*commandv1.Container{{Name: "app", Environment: env}, {Name: "side"}}}},
		}}}}},
	} {
		given := cmd.GetOp()
		before := proto.CloneOf(cmd)
		s.Seal(cmd)
		raw, err := proto.Marshal(cmd)
		if err != nil || bytes.Contains(raw, []byte("canary")) {
			t.Errorf("%s: the secret shows, %v", name, err)
		}
		if d := proto.Equal(before, &commandv1.Command{Op: given}); !d {
			t.Errorf("%s: what the caller gave was changed", name)
		}
		sealed := proto.CloneOf(cmd)
		if s.Seal(cmd); !proto.Equal(sealed, cmd) {
			t.Errorf("%s: sealed twice", name)
		}
		again := before
		if s.Seal(again); !proto.Equal(sealed, again) {
			t.Errorf("%s: the same command was sealed to something else", name)
		}
	}
}

func TestOpeningForTheOwner(t *testing.T) {
	t.Parallel()
	s := newSealer(t)
	env := map[string]string{"A": "1"}
	cmd := &commandv1.Command{Op: &commandv1.Command_ReviewIntercept{ReviewIntercept: &commandv1.ReviewIntercept{
		Review: &manager.ReviewInterceptRequest{Id: "s:one", Environment: env},
	}}}
	s.Seal(cmd)
	sealed := cmd.GetReviewIntercept().GetSealedEnvironment()
	got, err := s.InterceptEnvironment(&commandv1.InterceptRow{Id: "s:one", SealedEnvironment: sealed})
	if d := cmp.Diff(env, got); err != nil || d != "" {
		t.Errorf("%v\n%s", err, d)
	}
	if _, err := s.InterceptEnvironment(&commandv1.InterceptRow{Id: "s:two", SealedEnvironment: sealed}); errs.Reason(err) != seal.ReasonDamaged {
		t.Errorf("moved to another row: %v", err)
	}
	if _, err := newSealer(t).InterceptEnvironment(&commandv1.InterceptRow{Id: "s:one", SealedEnvironment: sealed}); errs.Reason(err) != seal.ReasonUnknownKey {
		t.Errorf("another cluster's: %v", err)
	}
	// Of a build that knew no sealing.
	if got, err := s.InterceptEnvironment(&commandv1.InterceptRow{Environment: env}); err != nil || got["A"] != "1" {
		t.Errorf("got %v, %v", got, err)
	}
	info := &manager.AgentInfo{
		Namespace: "default", Name: "echo", PodName: "echo-0", Environment: map[string]string{"A": "2"},
		Containers: map[string]*manager.AgentInfo_ContainerInfo{"": {Environment: map[string]string{"A": "3"}}, "app": {Environment: env}},
	}
	cmd = &commandv1.Command{Op: &commandv1.Command_ArriveAgent{ArriveAgent: &commandv1.ArriveAgent{Info: info}}}
	s.Seal(cmd)
	op := cmd.GetArriveAgent()
	agent, err := s.AgentInfo(&commandv1.SessionRow{Agent: op.GetInfo(), SealedEnvironments: op.GetSealedEnvironments()})
	if err != nil || !proto.Equal(info, agent) {
		t.Errorf("got %v, %v; want %v", agent, err, info)
	}
}

func TestIssuingFile(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "x", "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"} {
		if _, err := decodeIssuing([]byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}
