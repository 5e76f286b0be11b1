package cluster_test

import (
	"log/slog"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"trivet/cluster"
	"trivet/cluster/clustertest"
	"trivet/cluster/settings"
	"trivet/internal/loglevel"
	"trivet/internal/pki"
	"trivet/proto/telepresence/manager"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// TestLogLevel: a level reaches every server, node and agent, and ends on time.
func TestLogLevel(t *testing.T) {
	var levels []*loglevel.Var
	f := newFleet(t, 3, func(c *cluster.Config) {
		c.Level = loglevel.New(slog.LevelInfo)
		levels = append(levels, c.Level)
	})
	everywhere := func(want slog.Level) {
		t.Helper()
		for i, v := range levels {
			clustertest.Eventually(t, f.Servers[i].Name+" logs at "+want.String(), func() bool { return v.Level() == want })
		}
	}
	alice := f.manager(0, pki.RoleClient, "alice")
	agent, err := f.manager(1, pki.RoleAgent, "default/Deployment/echo/uid-1").WatchLogLevel(f.ctx, new(emptypb.Empty))
	must(t, err)
	next := func() *manager.LogLevelRequest { t.Helper(); return receive(t, agent, nil) }

	_, err = alice.SetLogLevel(f.ctx, &manager.LogLevelRequest{LogLevel: "loud"})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("an unknown level: %v", err)
	}
	// A client's ends by itself, even if it asks for none.
	_, err = alice.SetLogLevel(f.ctx, &manager.LogLevelRequest{LogLevel: "TRACE"})
	must(t, err)
	if m := next(); m.GetLogLevel() != "trace" || m.GetDuration().AsDuration() <= 59*time.Minute || m.GetDuration().AsDuration() > time.Hour {
		t.Errorf("told %v", m)
	}
	everywhere(loglevel.Trace)
	clustertest.Eventually(t, "the node is told", func() bool { return (<-f.orders).GetLogLevel().GetLevel() == "trace" })

	// An operator's does not.
	root := f.manager(2, pki.RoleOperator, "root")
	_, err = root.SetLogLevel(f.ctx, &manager.LogLevelRequest{LogLevel: "warning"})
	must(t, err)
	if m := next(); m.GetLogLevel() != "warn" || m.GetDuration() != nil {
		t.Errorf("told %v", m)
	}
	everywhere(slog.LevelWarn)

	// An agent's own comes first; when it ends the one of all holds again.
	value, err := settings.LogLevel{Level: "debug", Until: time.Now().Add(3 * time.Second)}.Encode()
	must(t, err)
	op := operatorsvc.NewOperatorClient(f.Conn(f.Servers[2], pki.RoleOperator, "root"))
	_, err = op.PutConfig(f.ctx, &operatorv1.PutConfigRequest{Key: settings.AgentLogLevel("default", "echo"), Value: value})
	must(t, err)
	if m := next(); m.GetLogLevel() != "debug" || m.GetDuration().AsDuration() <= 0 {
		t.Errorf("told %v", m)
	}
	if m := next(); m.GetLogLevel() != "warn" {
		t.Errorf("told %v when its own had ended", m)
	}

	// One that is in force is what a new stream begins with.
	late, err := f.manager(0, pki.RoleAgent, "other/Deployment/x/uid-2").WatchLogLevel(f.ctx, new(emptypb.Empty))
	if m := receive(t, late, err); m.GetLogLevel() != "warn" {
		t.Errorf("a late stream is told %v", m)
	}
	_, err = root.SetLogLevel(f.ctx, new(manager.LogLevelRequest))
	must(t, err)
	if m := next(); m.GetLogLevel() != "" {
		t.Errorf("told %v after a reset", m)
	}
	everywhere(slog.LevelInfo)

	_, err = alice.SetLogLevel(f.ctx, &manager.LogLevelRequest{LogLevel: "debug", Duration: durationpb.New(3 * time.Second)})
	must(t, err)
	if m := next(); m.GetLogLevel() != "debug" {
		t.Errorf("told %v", m)
	}
	everywhere(slog.LevelInfo)
	if _, err := op.PutConfig(f.ctx, &operatorv1.PutConfigRequest{Key: settings.KeyLogLevel, Value: []byte("level: loud")}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("an unknown level in the configuration: %v", err)
	}
}
