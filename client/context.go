package client

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"trivet/internal/config"
	"trivet/internal/errs"
	"trivet/internal/pki"
)

// Reasons of the errors about contexts.
const (
	// ReasonNoContext: there is no context file, or it has no such context.
	ReasonNoContext = "NO_CONTEXT"
	// ReasonBadContext: a context cannot be used as it is.
	ReasonBadContext = "BAD_CONTEXT"
)

// Context says how to reach one cluster and who to be there.
type Context struct {
	// Name identifies the context in its file.
	Name string `json:"name"`
	// Servers lists the addresses (host:port) of all servers of the cluster;
	// any of them will do, the others are for failover.
	Servers []string `json:"servers"`
	// Bundle is the directory with ca.crt, tls.crt and tls.key. A relative
	// path counts from the folder of the context file.
	Bundle string `json:"bundle,omitempty"`
	// CA, Certificate and Key hold the same three as PEM text, for a context
	// in one file. They go together and exclude Bundle.
	CA          string `json:"ca,omitempty"`
	Certificate string `json:"certificate,omitempty"`
	Key         string `json:"key,omitempty"`
	// Namespace is where commands work that name none.
	Namespace string `json:"namespace,omitempty"`
}

// Validate reports what makes the context unusable, without touching files.
func (c Context) Validate() error {
	bad := func(format string, args ...any) *errs.Error {
		return errs.New(codes.InvalidArgument, ReasonBadContext, "context %q: "+format, append([]any{c.Name}, args...)...)
	}
	if len(c.Servers) == 0 {
		return bad("no servers").WithHint(`list their addresses under "servers", or give --server`)
	}
	for _, s := range c.Servers {
		if err := ValidateAddress(s); err != nil {
			return bad("%w", err)
		}
	}
	inline := []string{c.CA, c.Certificate, c.Key}
	switch given := 3 - len(slices.DeleteFunc(slices.Clone(inline), func(s string) bool { return s != "" })); {
	case c.Bundle != "" && given > 0:
		return bad(`both "bundle" and inline certificates are given`).WithHint("keep one of the two")
	case c.Bundle == "" && given == 0:
		return bad("no identity").
			WithHint(`set "bundle" to the directory of the bundle that an operator issued to you`)
	case c.Bundle == "" && given < 3:
		return bad(`"ca", "certificate" and "key" go together`)
	}
	return nil
}

// ValidateAddress reports why addr is not the address of a server.
func ValidateAddress(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host == "" || port == "" {
		return errs.New(codes.InvalidArgument, ReasonBadContext, "%q is not an address", addr).
			WithHint("a server's address is host:port, for example 10.0.0.1:7400")
	}
	return nil
}

// Source opens the identity of the context.
func (c Context) Source() (*pki.Source, error) {
	if c.Bundle != "" {
		return pki.OpenSource(c.Bundle)
	}
	b, err := pki.ParseBundle([]byte(c.CA), []byte(c.Certificate), []byte(c.Key))
	if err != nil {
		return nil, err
	}
	return pki.NewSource(b), nil
}

// File is a context file. Load it with LoadFile; change it and call Save.
type File struct {
	// CurrentContext names the context that commands use by default.
	CurrentContext string    `json:"currentContext"`
	Contexts       []Context `json:"contexts"`

	path   string
	warned string
}

// DefaultPath is where the context file is: $TRIVET_CONFIG, else
// $XDG_CONFIG_HOME/trivet/config.yaml, with ~/.config where that is not set.
func DefaultPath(getenv func(string) string) (string, error) {
	if p := getenv("TRIVET_CONFIG"); p != "" {
		return p, nil
	}
	dir := getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) { // as the XDG specification says of relative ones
		home := getenv("HOME")
		if home == "" {
			return "", errs.New(codes.FailedPrecondition, ReasonNoContext,
				"there is no place for a context file: neither HOME nor XDG_CONFIG_HOME is set").
				WithHint("set TRIVET_CONFIG to the path of a context file")
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "trivet", "config.yaml"), nil
}

// LoadFile reads the context file at path. Contexts are not validated: one
// that is incomplete must not make the others unusable.
func LoadFile(path string) (*File, error) {
	f, err := config.Load[File](path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, errs.New(codes.NotFound, ReasonNoContext, "no context file at %s: %w", path, fs.ErrNotExist).
				WithHint("set TRIVET_CONFIG to the context.yaml that trivet dev, or an operator, made for you")
		}
		return nil, err
	}
	f.path = path
	seen := map[string]bool{}
	for i := range f.Contexts {
		c := &f.Contexts[i]
		if c.Name == "" || seen[c.Name] {
			return nil, errs.New(codes.InvalidArgument, ReasonBadContext,
				"%s: contexts[%d] needs a name of its own, has %q", path, i, c.Name)
		}
		seen[c.Name] = true
		if c.Bundle != "" && !filepath.IsAbs(c.Bundle) {
			c.Bundle = filepath.Join(filepath.Dir(path), c.Bundle)
		}
		if info, err := os.Stat(path); err == nil && c.Key != "" && info.Mode().Perm()&0o077 != 0 {
			f.warned = path + " holds a private key and others may read it; run: chmod 600 " + path
		}
	}
	return f, nil
}

// NewFile returns an empty file that Save will write to path.
func NewFile(path string) *File { return &File{path: path} }

// Path returns where the file is.
func (f *File) Path() string { return f.path }

// Warning returns a remark about the file that its user should see, or "".
func (f *File) Warning() string { return f.warned }

// Save writes the file with mode 0600, as a whole or not at all. Bundle paths
// become absolute.
func (f *File) Save() error { return config.Save(f.path, f, 0o600) }

// Get returns the context of that name; "" means the current one, or the only
// one.
func (f *File) Get(name string) (Context, error) {
	if name == "" {
		name = f.CurrentContext
	}
	if name == "" && len(f.Contexts) == 1 {
		return f.Contexts[0], nil
	}
	for _, c := range f.Contexts {
		if c.Name == name {
			return c, nil
		}
	}
	if name == "" {
		return Context{}, errs.New(codes.NotFound, ReasonNoContext, "%s: no context is current", f.path).
			WithHint("choose one with: trivet context use NAME (there are: %s)", f.names())
	}
	err := errs.New(codes.NotFound, ReasonNoContext, "%s has no context %q", f.path, name)
	if near := config.Closest(name, f.Names()); near != "" {
		return Context{}, err.WithHint("did you mean %q? there are: %s", near, f.names())
	}
	return Context{}, err.WithHint("there are: %s", f.names())
}

// Put adds c, or replaces the context of the same name, and makes the first
// context of a file current.
func (f *File) Put(c Context) {
	if f.CurrentContext == "" {
		f.CurrentContext = c.Name
	}
	for i := range f.Contexts {
		if f.Contexts[i].Name == c.Name {
			f.Contexts[i] = c
			return
		}
	}
	f.Contexts = append(f.Contexts, c)
}

// Use makes the context of that name current.
func (f *File) Use(name string) error {
	if _, err := f.Get(name); err != nil {
		return err
	}
	f.CurrentContext = name
	return nil
}

// Names lists the contexts in the order of the file.
func (f *File) Names() []string {
	names := make([]string, len(f.Contexts))
	for i, c := range f.Contexts {
		names[i] = c.Name
	}
	return names
}

func (f *File) names() string {
	if len(f.Contexts) == 0 {
		return "none"
	}
	return strings.Join(f.Names(), ", ")
}
