package managerapi

import (
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"trivet/cluster/authz"
	"trivet/cluster/settings"
	"trivet/fsm"
	"trivet/internal/loglevel"
	"trivet/internal/pki"
	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

// longestClientLevel is how long a level lasts at most that a client has set:
// the contract lets every client change how much all servers log, and clients
// do not come back to undo it. Operators may set one without an end.
const longestClientLevel = time.Hour

// SetLogLevel replaces the level of all servers, nodes and agents, for some time
// if the request says so. An empty level ends what was set.
func (s *Service) SetLogLevel(ctx context.Context, req *manager.LogLevelRequest) (*emptypb.Empty, error) {
	if req.GetLogLevel() == "" {
		_, err := s.propose(ctx, &commandv1.Command{Op: &commandv1.Command_DeleteConfig{
			DeleteConfig: &commandv1.DeleteConfig{Key: settings.KeyLogLevel},
		}})
		return new(emptypb.Empty), err
	}
	name, _, err := loglevel.Parse(req.GetLogLevel())
	if err != nil {
		return nil, err
	}
	during := max(req.GetDuration().AsDuration(), 0)
	if authz.Caller(ctx).Role != pki.RoleOperator && (during == 0 || during > longestClientLevel) {
		during = longestClientLevel
	}
	level := settings.LogLevel{Level: name}
	if during > 0 {
		level.Until = time.Now().Add(during).UTC()
	}
	raw, err := level.Encode()
	if err != nil {
		return nil, err
	}
	_, err = s.propose(ctx, &commandv1.Command{Op: &commandv1.Command_PutConfig{
		PutConfig: &commandv1.PutConfig{Key: settings.KeyLogLevel, Value: raw},
	}})
	return new(emptypb.Empty), err
}

// logLevelKeys are the keys that decide for an agent, its own first.
func logLevelKeys(id pki.ID) []string {
	var keys []string
	switch id.Role {
	case pki.RoleAgent:
		// <namespace>/<kind>/<workload>/<pod uid>
		if part := strings.Split(id.Name, "/"); len(part) >= 3 {
			keys = append(keys, settings.AgentLogLevel(part[0], part[2]))
		}
	case pki.RoleNode:
		keys = append(keys, settings.NodeLogLevel(id.Name))
	}
	return append(keys, settings.KeyLogLevel)
}

// WatchLogLevel tells an agent the level that is in force, with the time that is
// left of it, and every later one. When one ends by itself and nothing takes its
// place nothing is said: an agent measures the time on its own, so that it ends
// without a manager too.
func (s *Service) WatchLogLevel(_ *emptypb.Empty, stream grpc.ServerStreamingServer[manager.LogLevelRequest]) error {
	keys := logLevelKeys(authz.Caller(stream.Context()))
	w, root, end, err := s.watch(stream, "", 0)
	defer end()
	if err != nil {
		return err
	}
	ends := time.NewTimer(0)
	defer ends.Stop()
	var told settings.LogLevel
	for {
		now := time.Now()
		level := settings.LogLevelOf(root, now, keys...)
		if level != told && (level.Level != "" || told.In(now)) {
			msg := &manager.LogLevelRequest{LogLevel: level.Level}
			if !level.Until.IsZero() {
				msg.Duration = durationpb.New(level.Remaining(now))
			}
			if err := stream.Send(msg); err != nil {
				return err
			}
		}
		told = level
		ends.Stop()
		if left := told.Remaining(now); left > 0 {
			ends.Reset(left)
		}
		if root, err = w.nextConfig(ends.C, settings.IsLogLevel); err != nil {
			return err
		}
	}
}

// nextConfig waits for a change of a key of the configuration that concerns the
// watch, or for a time.
func (w *watch) nextConfig(at <-chan time.Time, concerns func(key string) bool) (*fsm.Root, error) {
	for {
		select {
		case <-at:
			return w.s.cfg.Core.Root(), nil
		case <-w.cur.Wait():
		case <-w.stream.Context().Done():
			return nil, w.stream.Context().Err()
		case <-w.s.cfg.Stopping:
			return nil, errStopping()
		}
		b := w.cur.Next()
		if b.Resync || slices.ContainsFunc(b.Events, func(e fsm.Event) bool { return e.Table == fsm.TableConfig && concerns(e.Key) }) {
			return b.Root, nil
		}
	}
}
