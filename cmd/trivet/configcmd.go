package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"trivet/internal/config"
	"trivet/internal/errs"
	"trivet/internal/render"
	"trivet/node"
)

// configKind is one kind of configuration file.
type configKind struct {
	prefix  string
	schema  func() ([]byte, error)
	explain func(path string) ([]config.Value, error)
	check   func(path string) error
}

var configKinds = map[string]configKind{
	"server": {
		prefix: serverEnv,
		schema: func() ([]byte, error) { return config.Schema[serverFile]("configuration of trivet server run") },
		explain: func(path string) ([]config.Value, error) {
			return config.Explain[serverFile](path, serverEnv, os.LookupEnv)
		},
		check: func(path string) error {
			f, err := loadServerFile(path)
			if err != nil {
				return err
			}
			_, err = f.config(path)
			return err
		},
	},
	"node": {
		schema: func() ([]byte, error) { return config.Schema[node.Config]("configuration of trivet node run") },
		explain: func(path string) ([]config.Value, error) {
			return config.Explain[node.Config](path, "", func(string) (string, bool) { return "", false })
		},
		check: func(path string) error { _, err := node.LoadConfig(path); return err },
	},
}

func newConfigCmd(a *App) *cobra.Command {
	cmd := group(&cobra.Command{Use: "config", Short: "Check and explain the files of servers and nodes"})
	var kind, path string
	chosen := func() (configKind, error) {
		k, ok := configKinds[kind]
		if !ok {
			return k, usage("--kind %q is not known", kind).WithHint("use server or node")
		}
		return k, nil
	}
	needFile := func() error {
		if path == "" {
			return usage("--config is not set").WithHint("give the file to look at")
		}
		return nil
	}
	cmd.PersistentFlags().StringVar(&kind, "kind", "server", "`kind` of the file: server or node")

	validate := &cobra.Command{
		Use: "validate --config FILE", Short: "Say everything that is wrong with a file", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			k, err := chosen()
			if err == nil {
				err = needFile()
			}
			if err == nil {
				err = k.check(path)
			}
			if err != nil {
				return err
			}
			v := map[string]any{"file": path, "kind": kind, "valid": true}
			return render.Object(a.Printer(), v, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "%s is a valid configuration of a %s\n", path, kind)
				return err
			})
		},
	}
	show := &cobra.Command{
		Use: "print --config FILE", Short: "Show each value and where it comes from: file, environment or default", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			k, err := chosen()
			if err == nil {
				err = needFile()
			}
			if err != nil {
				return err
			}
			values, err := k.explain(path)
			if err != nil {
				return err
			}
			return render.List(a.Printer(), values, 0, "values", []render.Column[config.Value]{
				{Name: "KEY", Value: func(v config.Value) string { return v.Key }},
				{Name: "VALUE", Value: func(v config.Value) string { return string(v.Value) }},
				{Name: "SOURCE", Value: func(v config.Value) string { return v.Source }},
			})
		},
	}
	schema := &cobra.Command{
		Use: "schema", Short: "Print the JSON Schema of a file", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			k, err := chosen()
			if err != nil {
				return err
			}
			out, err := k.schema()
			if err != nil {
				return errs.From(err)
			}
			_, err = a.Out.Write(out)
			return err
		},
	}
	for _, c := range []*cobra.Command{validate, show} {
		c.Flags().StringVar(&path, "config", "", "`path` of the file")
	}
	cmd.AddCommand(validate, show, schema)
	return cmd
}
