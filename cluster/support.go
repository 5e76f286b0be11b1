package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/prometheus/common/expfmt"
	"google.golang.org/protobuf/encoding/protojson"

	operatorv1 "trivet/proto/trivet/operator/v1"
)

// Health is what Checks says, for the operator service.
func (v *clusterView) Health() []*operatorv1.HealthCheck {
	var out []*operatorv1.HealthCheck
	for _, c := range (*Server)(v).Checks() {
		out = append(out, &operatorv1.HealthCheck{Name: c.Name, Level: c.Level, Message: c.Message, Hint: c.Hint})
	}
	return out
}

// Collect emits what helps to understand this server from afar. Nothing in it
// is secret: no row is in it, and the configuration names files of keys, not
// what they hold.
func (v *clusterView) Collect(ctx context.Context, emit func(name string, data []byte) error) error {
	s := (*Server)(v)
	files := []struct {
		name string
		make func() ([]byte, error)
	}{
		{"process.json", s.describeProcess},
		{"config.yaml", func() ([]byte, error) {
			if s.cfg.Describe == nil {
				return nil, nil
			}
			return s.cfg.Describe(), nil
		}},
		{"servers.json", func() ([]byte, error) {
			servers, err := v.Servers(ctx)
			if err != nil {
				return nil, err
			}
			return protojson.MarshalOptions{Multiline: true}.Marshal(&operatorv1.StatusResponse{
				Server: v.Self(), Leader: v.LeaderName(), Term: v.Term(), Revision: s.machine.Root().Revision(), Servers: servers, Ready: v.Ready(),
			})
		}},
		{"health.json", func() ([]byte, error) { return json.MarshalIndent(s.Checks(), "", "  ") }},
		{"metrics.txt", s.metricsText},
		{"log.jsonl", func() ([]byte, error) {
			if s.cfg.RecentLog == nil {
				return nil, nil
			}
			lines, gone := s.cfg.RecentLog()
			if gone > 0 {
				lines = append(fmt.Appendf(nil, "{\"msg\":\"%d older records are not kept\"}\n", gone), lines...)
			}
			return lines, nil
		}},
	}
	for _, f := range files {
		data, err := f.make()
		if err != nil {
			// A bundle is wanted most when things fail: the rest is still worth having.
			data = fmt.Appendf(nil, "not available: %v\n", err)
		}
		if err := emit(f.name, data); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) describeProcess() ([]byte, error) {
	info, _ := debug.ReadBuildInfo()
	return json.MarshalIndent(map[string]any{
		"name": s.cfg.Name, "id": s.replica.ID(), "bootId": s.bootID, "version": s.cfg.Version, "startedAt": s.started,
		"now": time.Now(), "go": runtime.Version(), "cpus": runtime.NumCPU(), "goroutines": runtime.NumGoroutine(),
		"build": info.Settings,
	}, "", "  ")
}

func (s *Server) metricsText() ([]byte, error) {
	families, err := s.registryOfMetrics().Gather()
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&buf, f); err != nil {
			return nil, err
		}
	}
	return buf.Bytes(), nil
}
