package node

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"trivet/internal/config"
	"trivet/internal/errs"
	"trivet/internal/loglevel"
	"trivet/node/steal"
)

// DefaultAdmin is where a node shows its health and metrics.
const DefaultAdmin = "127.0.0.1:7411"

// StealAuto takes the best backend that works.
const StealAuto = "auto"

// Config is a node's configuration file. Paths in it are relative to the
// folder of the file.
type Config struct {
	// Name is the node's name, as in its certificate.
	Name string `json:"name"`
	// Servers are the addresses of the manager's servers, HOST:PORT.
	Servers []string `json:"servers"`
	// Bundle is the directory of the node's certificate.
	Bundle string `json:"bundle"`
	// Token gets the first certificate if Bundle has none; @FILE reads it from a
	// file.
	Token string `json:"token,omitempty"`
	// StateDir is where the node keeps what must survive a restart. It belongs
	// to one node alone.
	StateDir string `json:"stateDir"`
	// WorkloadsFile says what runs here.
	WorkloadsFile string `json:"workloadsFile"`
	// Admin is the address for health and metrics, on loopback; empty turns
	// it off. Port 0 takes any; the file admin.addr in StateDir then tells.
	Admin string `json:"admin"`
	// Steal is auto, sk_lookup (fail where that does not work) or proxy.
	Steal string `json:"steal"`
	// Log says what is logged, and how, to standard error.
	Log LogConfig `json:"log"`

	// Version is this build's, set by the program.
	Version string `json:"-"`
	// Command starts the traffic process, set by the program: a path and its
	// arguments. Nil means this executable with the arguments node traffic.
	Command []string `json:"-"`
	// Logger takes the place of Log in the holder, for a program that has one.
	Logger *slog.Logger `json:"-"`
}

// LogConfig says what is logged.
type LogConfig struct {
	// Level is error, warn, info, debug or trace.
	Level string `json:"level"`
	// Format is text or json.
	Format string `json:"format"`
}

// SetDefaults fills in what an empty file means.
func (c *Config) SetDefaults() {
	c.Admin, c.Steal = DefaultAdmin, StealAuto
	c.Log = LogConfig{Level: "info", Format: "text"}
}

// LoadConfig reads and checks the file at path.
func LoadConfig(path string) (*Config, error) {
	c, err := config.Load[Config](path)
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("find the folder of %s: %w", path, err)
	}
	for _, p := range []*string{&c.Bundle, &c.StateDir, &c.WorkloadsFile} {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(dir, *p)
		}
	}
	if err := c.Validate(); err != nil {
		return nil, errs.New(codes.InvalidArgument, config.ReasonInvalid, "%s: %w", path, err).WithHint("%s", errs.From(err).Hint)
	}
	return c, nil
}

// Validate returns all problems of the configuration in one error.
func (c *Config) Validate() error {
	var problems []string
	refuse := func(key, format string, args ...any) {
		problems = append(problems, key+": "+fmt.Sprintf(format, args...))
	}
	for key, value := range map[string]string{
		"name": c.Name, "bundle": c.Bundle, "stateDir": c.StateDir, "workloadsFile": c.WorkloadsFile,
	} {
		if value == "" {
			refuse(key, "missing")
		}
	}
	if len(c.Servers) == 0 {
		refuse("servers", "at least one address is needed")
	}
	for i, s := range c.Servers {
		if err := checkAddress(s); err != nil {
			refuse(fmt.Sprintf("servers[%d]", i), "%v", err)
		}
		if slices.Contains(c.Servers[:i], s) {
			refuse(fmt.Sprintf("servers[%d]", i), "%s is there twice", s)
		}
	}
	if c.Admin != "" {
		a, err := netip.ParseAddrPort(c.Admin)
		switch {
		case err != nil:
			refuse("admin", "%q is not an address with a port, such as %s", c.Admin, DefaultAdmin)
		case !a.Addr().IsLoopback():
			refuse("admin", "%s is not a loopback address: health and metrics are for this machine only", a.Addr())
		}
	}
	for _, choice := range []struct {
		key, value string
		among      []string
	}{
		{"steal", c.Steal, []string{StealAuto, steal.NameSkLookup, steal.NameProxy}},
		{"log.level", c.Log.Level, loglevel.Names()},
		{"log.format", c.Log.Format, []string{"text", "json"}},
	} {
		if slices.Contains(choice.among, choice.value) {
			continue
		}
		text := fmt.Sprintf("%q is none of %s", choice.value, strings.Join(choice.among, ", "))
		if near := config.Closest(choice.value, choice.among); near != "" {
			text += fmt.Sprintf("; did you mean %q?", near)
		}
		refuse(choice.key, "%s", text)
	}
	if len(problems) == 0 {
		return nil
	}
	slices.Sort(problems)
	return errs.New(codes.InvalidArgument, config.ReasonInvalid, "%s", strings.Join(problems, "; ")).
		WithHint("correct these keys in the node's configuration")
}

func checkAddress(s string) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" {
		return fmt.Errorf("%q is not HOST:PORT", s)
	}
	if _, err := net.LookupPort("tcp", port); err != nil || port == "0" {
		return fmt.Errorf("%q is not a port", port)
	}
	return nil
}

// command makes the traffic process.
func (c *Config) command() *exec.Cmd {
	argv := c.Command
	if argv == nil {
		// Not by its path: the file may have been replaced by another build.
		argv = []string{"/proc/self/exe", "node", "traffic"}
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd
}

// newLogger makes the logger of a process of the node, and its level.
func (c *Config) newLogger(process string) (*slog.Logger, *loglevel.Var, error) {
	_, level, err := loglevel.Parse(c.Log.Level)
	if err != nil {
		return nil, nil, err
	}
	v := loglevel.New(level)
	opts := &slog.HandlerOptions{Level: v}
	var h slog.Handler = slog.NewTextHandler(os.Stderr, opts)
	if c.Log.Format == "json" {
		h = slog.NewJSONHandler(os.Stderr, opts)
	}
	return slog.New(h).With("node", c.Name, "process", process), v, nil
}

// makeStateDir makes the state directory, for this user alone.
func (c *Config) makeStateDir() error {
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	return nil
}
