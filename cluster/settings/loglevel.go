package settings

import (
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"sigs.k8s.io/yaml"

	"trivet/internal/errs"
	"trivet/internal/loglevel"
	commandv1 "trivet/proto/trivet/command/v1"
)

// KeyLogLevel is how much all servers, nodes and agents log. A node or the
// agents of a workload may have their own, under [NodeLogLevel] and
// [AgentLogLevel].
const KeyLogLevel = "log-level"

// NodeLogLevel is the key of one node's.
func NodeLogLevel(node string) string { return KeyLogLevel + "/node/" + node }

// AgentLogLevel is the key of the agents of one workload.
func AgentLogLevel(namespace, workload string) string {
	return KeyLogLevel + "/agent/" + namespace + "/" + workload
}

// IsLogLevel says whether a key is one of those.
func IsLogLevel(key string) bool {
	return key == KeyLogLevel || strings.HasPrefix(key, KeyLogLevel+"/")
}

// LogLevel is the value of those keys. The zero value is none.
type LogLevel struct {
	// Level is one of loglevel.Names; it replaces the one that a process was
	// configured with.
	Level string `json:"level"`
	// Until is when it ends by itself; zero: it does not.
	Until time.Time `json:"until,omitzero"`
}

// ParseLogLevel reads the value of a key.
func ParseLogLevel(text []byte) (LogLevel, error) {
	var l LogLevel
	if err := yaml.UnmarshalStrict(text, &l); err != nil {
		return LogLevel{}, errs.New(codes.InvalidArgument, "BAD_CONFIG", "%s: %w", KeyLogLevel, err).
			WithHint("the value is YAML with level and, if it is to end by itself, until; `trivet loglevel set` writes it")
	}
	name, _, err := loglevel.Parse(l.Level)
	if err != nil {
		return LogLevel{}, err
	}
	l.Level = name
	return l, nil
}

// Encode is the inverse of ParseLogLevel.
func (l LogLevel) Encode() ([]byte, error) { return yaml.Marshal(l) }

// In says whether it is in force at a time.
func (l LogLevel) In(now time.Time) bool {
	return l.Level != "" && (l.Until.IsZero() || now.Before(l.Until))
}

// Remaining is how long it is still in force, 0 when it does not end by itself.
func (l LogLevel) Remaining(now time.Time) time.Duration {
	if l.Until.IsZero() {
		return 0
	}
	return l.Until.Sub(now)
}

// Slog is the level as slog counts.
func (l LogLevel) Slog() slog.Level {
	_, level, _ := loglevel.Parse(l.Level) // a LogLevel was parsed
	return level
}

// Configs is what a state has under keys of the configuration.
type Configs interface {
	Config(key string) (*commandv1.ConfigRow, bool)
}

// LogLevelOf is the first of some keys whose level is in force. Values that
// cannot be read count as none: they were checked when they were written.
func LogLevelOf(state Configs, now time.Time, keys ...string) LogLevel {
	for _, key := range keys {
		row, ok := state.Config(key)
		if !ok {
			continue
		}
		if l, err := ParseLogLevel(row.GetValue()); err == nil && l.In(now) {
			return l
		}
	}
	return LogLevel{}
}
