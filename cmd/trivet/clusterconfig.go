package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"trivet/internal/render"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// configKeyView is one key of the cluster's configuration.
type configKeyView struct {
	Key            string `json:"key"`
	Bytes          uint64 `json:"bytes"`
	ModifyRevision uint64 `json:"modifyRevision"`
}

// configView is one key with its value.
type configView struct {
	Key            string `json:"key"`
	Value          string `json:"value"`
	ModifyRevision uint64 `json:"modifyRevision"`
}

// maxConfigFile is what one value may have; the state has the same bound.
const maxConfigFile = 512 << 10

func newClusterConfigCmd(a *App) *cobra.Command {
	cmd := group(&cobra.Command{
		Use: "config", Short: "The configuration that all servers share",
		Long: `Keys with values, kept in the cluster's state. docs/peers.md lists those that mean
something to trivet; others are yours.`,
	})
	cmd.AddCommand(newClusterConfigListCmd(a), newClusterConfigGetCmd(a), newClusterConfigSetCmd(a), newClusterConfigDeleteCmd(a))
	return cmd
}

func configKeys(q query) ([]*operatorv1.ConfigKey, uint64, error) {
	return pages(func(p *operatorv1.Page) ([]*operatorv1.ConfigKey, string, uint64, error) {
		r, err := q.api.ListConfig(q.ctx, &operatorv1.ListConfigRequest{Page: p})
		return r.GetKeys(), r.GetNextPageToken(), r.GetRevision(), err
	})
}

func newClusterConfigListCmd(a *App) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the keys", Args: noArgs,
		RunE: a.ask(func(q query) error {
			keys, revision, err := configKeys(q)
			if err != nil {
				return err
			}
			rows := views(keys, func(k *operatorv1.ConfigKey) configKeyView {
				return configKeyView{Key: k.GetKey(), Bytes: k.GetBytes(), ModifyRevision: k.GetModifyRevision()}
			})
			return render.List(a.Printer(), rows, revision, "keys", []render.Column[configKeyView]{
				{Name: "KEY", Value: func(v configKeyView) string { return v.Key }},
				{Name: "SIZE", Value: func(v configKeyView) string { return render.Bytes(v.Bytes) }},
				{Name: "REVISION", Value: func(v configKeyView) string { return strconv.FormatUint(v.ModifyRevision, 10) }},
			})
		}),
	}
}

func newClusterConfigGetCmd(a *App) *cobra.Command {
	return &cobra.Command{
		Use: "get KEY", Short: "Print the value of a key", Args: oneArg("a KEY"),
		RunE: a.ask(func(q query) error {
			r, err := q.api.GetConfig(q.ctx, &operatorv1.GetConfigRequest{Key: q.args[0]})
			if err != nil {
				return err
			}
			v := configView{Key: r.GetKey(), Value: string(r.GetValue()), ModifyRevision: r.GetModifyRevision()}
			return render.Object(a.Printer(), v, func(w io.Writer) error {
				_, err := w.Write(r.GetValue())
				return err
			})
		}),
	}
}

func newClusterConfigSetCmd(a *App) *cobra.Command {
	var revision uint64
	cmd := &cobra.Command{
		Use:   "set KEY VALUE",
		Short: "Set a key; @FILE reads the value from a file, - from standard input",
		Example: `  trivet operator config set telepresence/client.yaml @client.yaml
  trivet operator config set telepresence/excluded-environment AWS_SECRET_ACCESS_KEY`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usage("%s needs a KEY and a VALUE", cmd.CommandPath()).WithHint("usage: %s", cmd.UseLine())
			}
			return nil
		},
	}
	cmd.RunE = a.ask(func(q query) error {
		value, err := a.readValue(q.args[1])
		if err != nil {
			return err
		}
		req := &operatorv1.PutConfigRequest{Key: q.args[0], Value: value}
		if cmd.Flags().Changed("if-revision") {
			req.IfModifyRevision = &revision
		}
		r, err := q.api.PutConfig(q.ctx, req)
		if err != nil {
			return err
		}
		v := configKeyView{Key: req.GetKey(), Bytes: uint64(len(value)), ModifyRevision: r.GetRevision()}
		return render.Object(a.Printer(), v, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "%s is set (revision %d)\n", render.Clean(v.Key), v.ModifyRevision)
			return err
		})
	})
	cmd.Flags().Uint64Var(&revision, "if-revision", 0, "only if the key is at this `revision`; 0: only if there is none")
	return cmd
}

func newClusterConfigDeleteCmd(a *App) *cobra.Command {
	return &cobra.Command{
		Use: "delete KEY", Short: "Delete a key", Args: oneArg("a KEY"),
		RunE: a.ask(func(q query) error {
			r, err := q.api.DeleteConfig(q.ctx, &operatorv1.DeleteConfigRequest{Key: q.args[0]})
			if err != nil {
				return err
			}
			v := configKeyView{Key: q.args[0], ModifyRevision: r.GetRevision()}
			return render.Object(a.Printer(), v, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "%s was deleted (revision %d)\n", render.Clean(v.Key), v.ModifyRevision)
				return err
			})
		}),
	}
}

// readValue is text itself, what "@FILE" names, or standard input for "-".
func (a *App) readValue(text string) ([]byte, error) {
	var in io.Reader
	switch {
	case text == "-":
		in = a.In
	case strings.HasPrefix(text, "@"):
		f, err := os.Open(text[1:])
		if err != nil {
			return nil, usage("read the value: %w", err)
		}
		defer f.Close()
		in = f
	default:
		return []byte(text), nil
	}
	value, err := io.ReadAll(io.LimitReader(in, maxConfigFile+1))
	if err != nil {
		return nil, usage("read the value: %w", err)
	}
	if len(value) > maxConfigFile {
		return nil, usage("the value is larger than %s, which is all that a key may have", render.Bytes(maxConfigFile))
	}
	return value, nil
}
