package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"trivet/cluster/settings"
	"trivet/internal/loglevel"
	"trivet/internal/render"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// levelView is one level that was set.
type levelView struct {
	For   string     `json:"for"`
	Level string     `json:"level"`
	Until *time.Time `json:"until,omitempty"`
}

const everything = "everything"

// levelFor names what a key is about.
func levelFor(key string) string {
	return strings.TrimPrefix(strings.TrimPrefix(key, settings.KeyLogLevel), "/")
}

// levelTarget chooses whose level is meant.
type levelTarget struct{ node, agent string }

func (t *levelTarget) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&t.node, "node", "", "only of this `node`")
	cmd.Flags().StringVar(&t.agent, "agent", "", "only of the agents of this `workload` in the namespace")
	cmd.MarkFlagsMutuallyExclusive("node", "agent")
}

func (t *levelTarget) key(a *App) (string, error) {
	switch {
	case t.node != "":
		return settings.NodeLogLevel(t.node), nil
	case t.agent != "":
		c, err := a.Context()
		return settings.AgentLogLevel(c.Namespace, t.agent), err
	}
	return settings.KeyLogLevel, nil
}

func newLogLevelCmd(a *App) *cobra.Command {
	cmd := group(&cobra.Command{
		Use: "loglevel", Short: "How much servers, nodes and agents log (role operator)",
		Long: `A level replaces the configured one of all servers, nodes and agents, or of one
node or the agents of one workload, until it is set again, reset, or its time is
over. It is a part of the cluster's state, so that it holds on servers that start
later and ends on time whatever fails in between.`,
	})
	cmd.AddCommand(newLogLevelSetCmd(a), newLogLevelResetCmd(a), newLogLevelListCmd(a))
	return cmd
}

func newLogLevelSetCmd(a *App) *cobra.Command {
	var target levelTarget
	var during time.Duration
	cmd := &cobra.Command{
		Use:   "set LEVEL",
		Short: "Log at another level: " + strings.Join(loglevel.Names(), ", "),
		Example: `  trivet loglevel set debug --for 30m
  trivet loglevel set trace --for 5m --node node-1`,
		Args:              oneArg("a LEVEL, such as debug"),
		ValidArgsFunction: firstArgument(choices(loglevel.Names()...)),
		RunE: a.ask(func(q query) error {
			name, _, err := loglevel.Parse(q.args[0])
			if err != nil {
				return err
			}
			if during < 0 {
				return usage("--for %s is over before it begins", during)
			}
			key, err := target.key(a)
			if err != nil {
				return err
			}
			level := settings.LogLevel{Level: name}
			if during > 0 {
				level.Until = a.Now().Add(during).UTC()
			}
			raw, err := level.Encode()
			if err != nil {
				return err
			}
			if _, err := q.api.PutConfig(q.ctx, &operatorv1.PutConfigRequest{Key: key, Value: raw}); err != nil {
				return err
			}
			v := viewLevel(key, level)
			return render.Object(a.Printer(), v, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "%s logs at %s%s\n", render.Clean(v.For), v.Level, ends(v.Until, during))
				return err
			})
		}),
	}
	target.add(cmd)
	cmd.Flags().DurationVar(&during, "for", 0, "`time` after which the configured level holds again; 0: when it is reset")
	return cmd
}

func ends(until *time.Time, during time.Duration) string {
	if until == nil {
		return " until it is set again or reset"
	}
	return fmt.Sprintf(" for %s", during)
}

func viewLevel(key string, l settings.LogLevel) levelView {
	v := levelView{For: levelFor(key), Level: l.Level}
	if v.For == "" {
		v.For = everything
	}
	if !l.Until.IsZero() {
		v.Until = &l.Until
	}
	return v
}

func newLogLevelResetCmd(a *App) *cobra.Command {
	var target levelTarget
	cmd := &cobra.Command{
		Use: "reset", Short: "Log at the configured level again", Args: noArgs,
		RunE: a.ask(func(q query) error {
			key, err := target.key(a)
			if err != nil {
				return err
			}
			if _, err := q.api.DeleteConfig(q.ctx, &operatorv1.DeleteConfigRequest{Key: key}); err != nil {
				return err
			}
			v := viewLevel(key, settings.LogLevel{})
			return render.Object(a.Printer(), v, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "%s logs at its configured level\n", render.Clean(v.For))
				return err
			})
		}),
	}
	target.add(cmd)
	return cmd
}

func newLogLevelListCmd(a *App) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "Show the levels that are set and not over", Args: noArgs,
		RunE: a.ask(func(q query) error {
			keys, revision, err := configKeys(q)
			if err != nil {
				return err
			}
			keys = slices.DeleteFunc(keys, func(k *operatorv1.ConfigKey) bool { return !settings.IsLogLevel(k.GetKey()) })
			var rows []levelView
			for _, k := range keys {
				r, err := q.api.GetConfig(q.ctx, &operatorv1.GetConfigRequest{Key: k.GetKey()})
				if err != nil {
					return err
				}
				if l, err := settings.ParseLogLevel(r.GetValue()); err == nil && l.In(a.Now()) {
					rows = append(rows, viewLevel(k.GetKey(), l))
				}
			}
			return render.List(a.Printer(), rows, revision, "levels", []render.Column[levelView]{
				{Name: "FOR", Value: func(v levelView) string { return v.For }},
				{Name: "LEVEL", Value: func(v levelView) string { return v.Level }},
				{Name: "ENDS IN", Value: func(v levelView) string {
					if v.Until == nil {
						return "never"
					}
					return v.Until.Sub(a.Now()).Round(time.Second).String()
				}},
			})
		}),
	}
}
