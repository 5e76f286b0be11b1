package cluster

import (
	"context"
	"slices"
	"time"

	"trivet/cluster/settings"
	"trivet/fsm"
)

// followLogLevel keeps this server's level at what the state says, until ctx
// ends.
func (s *Server) followLogLevel(ctx context.Context) {
	if s.cfg.Level == nil {
		return
	}
	root := s.machine.Root()
	cur := s.engine.WatchFrom(root)
	var used settings.LogLevel
	for {
		now := time.Now()
		switch level := settings.LogLevelOf(root, now, settings.KeyLogLevel); {
		case level == used:
		case level.Level == "":
			s.cfg.Level.Reset()
			used = level
			s.log.Info("the log is at its configured level again")
		default:
			s.cfg.Level.Use(level.Slog(), level.Remaining(now))
			used = level
			s.log.Info("the log is at another level", "level", level.Level, "until", level.Until)
		}
		for again := false; !again; {
			select {
			case <-cur.Wait():
			case <-ctx.Done():
				return
			}
			b := cur.Next()
			root = b.Root
			again = b.Resync || slices.ContainsFunc(b.Events, func(e fsm.Event) bool {
				return e.Table == fsm.TableConfig && e.Key == settings.KeyLogLevel
			})
		}
	}
}
