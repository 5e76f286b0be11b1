package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"trivet/client"
	"trivet/internal/enroll"
	"trivet/internal/errs"
)

// reasonNameRequired is what a server says when a token is for many names.
const reasonNameRequired = "NAME_REQUIRED"

// bundlesDir is where login keeps certificates, beside the context file.
const bundlesDir = "bundles"

func newLoginCmd(a *App) *cobra.Command {
	var text, name string
	cmd := &cobra.Command{
		Use:   "login --token TOKEN [--server ADDRESS] [--name NAME] [--context NAME]",
		Short: "Get a certificate for a token, and a context to use it with",
		Long: `Get a certificate for a token, and a context to use it with.

The context, which becomes the current one, is called like the cluster unless
--context says otherwise; a context of that name is replaced. --token - reads
the token from standard input, --token @FILE from a file. A login that was cut
short is repeated with the same token.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if text == "" {
				return usage("--token is not set").WithHint("an operator makes one: trivet token create --role client --name %s", a.userName())
			}
			token, err := a.readToken(text)
			if err != nil {
				return err
			}
			ctx, cancel := a.Timeout(cmd.Context())
			defer cancel()
			return a.login(ctx, token, name)
		},
	}
	cmd.Flags().StringVar(&text, "token", "", "`token` from an operator")
	cmd.Flags().StringVar(&name, "name", "", "`name` to be known by, if the token allows several (default: your user name)")
	return cmd
}

// userName is the name of the user who runs the command, "" if unknown.
func (a *App) userName() string {
	if u := a.Getenv("USER"); u != "" {
		return u
	}
	return a.Getenv("LOGNAME")
}

func (a *App) login(ctx context.Context, token, name string) error {
	parsed, err := enroll.ParseToken(token)
	if err != nil {
		return err
	}
	file, err := a.contextFileOrNew()
	if err != nil {
		return err
	}
	servers, err := a.loginServers(file)
	if err != nil {
		return err
	}
	// Named by the token, so that a repetition finds the key of the first try.
	dir := filepath.Join(filepath.Dir(file.Path()), bundlesDir, parsed.ID)
	req := enroll.Request{Token: token, Name: name, Servers: servers, Now: a.Now}
	answer, err := enroll.Join(ctx, dir, req)
	if errs.Reason(err) == reasonNameRequired && name == "" && a.userName() != "" {
		req.Name = a.userName()
		answer, err = enroll.Join(ctx, dir, req)
	}
	if err != nil {
		return err
	}
	id := answer.Bundle.ID
	c := client.Context{Name: a.flags.context, Servers: reachable(ctx, servers, answer.Servers), Bundle: dir, Namespace: a.flags.namespace}
	if c.Name == "" {
		c.Name = id.Cluster
	}
	old, _ := file.Get(c.Name) // none: nothing to clear away
	file.Put(c)
	if err := errors.Join(file.Use(c.Name), file.Save()); err != nil {
		return err
	}
	a.forgetBundle(file, old.Bundle)
	a.Printer().Notef("you are %s until %s; context %s is current", id, answer.Bundle.NotAfter.Local().Format("2006-01-02 15:04"), c.Name)
	return nil
}

// reachTimeout bounds the look whether a server can be reached.
const reachTimeout = 2 * time.Second

// reachable chooses the servers of a new context: those that the cluster names,
// which are all of them, if one of them can be reached from here, else those
// that could. Behind a forwarded port only these have a name here.
func reachable(ctx context.Context, asked, named []string) []string {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	reached := make(chan bool, len(named))
	for _, address := range named {
		go func() {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
			if err == nil {
				conn.Close()
			}
			reached <- err == nil
		}()
	}
	chosen := asked
	for range named {
		if <-reached {
			chosen = named
			cancel()
		}
	}
	return chosen
}

// contextFileOrNew is the context file, or one that Save will make.
func (a *App) contextFileOrNew() (*client.File, error) {
	f, err := a.ContextFile()
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	path, err := client.DefaultPath(a.Getenv)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of the context file: %w", err)
	}
	return client.NewFile(path), nil
}

// loginServers are those of --server, else those of the context.
func (a *App) loginServers(file *client.File) ([]string, error) {
	servers := a.flags.servers
	if len(servers) == 0 {
		if c, err := file.Get(a.flags.context); err == nil {
			servers = c.Servers
		}
	}
	if len(servers) == 0 {
		return nil, usage("no server is named").WithHint("give --server HOST:PORT; one of the cluster's is enough")
	}
	for _, s := range servers {
		if err := client.ValidateAddress(s); err != nil {
			return nil, err
		}
	}
	return servers, nil
}

// forgetBundle removes a bundle that an earlier login made and no context uses
// any more. What cannot be removed does no harm.
func (a *App) forgetBundle(file *client.File, dir string) {
	if dir == "" || filepath.Dir(dir) != filepath.Join(filepath.Dir(file.Path()), bundlesDir) {
		return
	}
	for _, c := range file.Contexts {
		if c.Bundle == dir {
			return
		}
	}
	_ = os.RemoveAll(dir)
}

// enrolFirst gets the first bundle of a server or node, if dir has none and
// there is a token. It asks until a server answers, or the process is told to
// stop: the servers may start later.
func (a *App) enrolFirst(ctx context.Context, dir string, req enroll.Request) error {
	if req.Token == "" || bundleThere(dir) {
		return nil
	}
	token, err := a.readToken(req.Token)
	if err != nil {
		return err
	}
	req.Token = token
	answer, err := enroll.Join(ctx, dir, req)
	if err != nil {
		return fmt.Errorf("get the first certificate of %s %s: %w", req.Role, req.Name, err)
	}
	a.Printer().Notef("got a certificate for %s, in %s", answer.Bundle.ID, dir)
	return nil
}
