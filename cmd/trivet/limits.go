package main

import (
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"trivet/internal/config"
	"trivet/internal/render"
	commandv1 "trivet/proto/trivet/command/v1"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// limitView is one limit.
type limitView struct {
	Name  string `json:"name"`
	Value uint64 `json:"value"`
}

func viewLimits(l *commandv1.Limits) []limitView {
	var out []limitView
	fields := l.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		out = append(out, limitView{Name: f.JSONName(), Value: l.ProtoReflect().Get(f).Uint()})
	}
	return out
}

func (a *App) printLimits(l *commandv1.Limits, revision uint64) error {
	return render.List(a.Printer(), viewLimits(l), revision, "limits", []render.Column[limitView]{
		{Name: "LIMIT", Value: func(v limitView) string { return v.Name }},
		{Name: "VALUE", Value: func(v limitView) string { return strconv.FormatUint(v.Value, 10) }},
	})
}

func newLimitsGetCmd(a *App) *cobra.Command {
	return &cobra.Command{
		Use: "get", Short: "Show the limits, defaults filled in", Args: noArgs,
		RunE: a.ask(func(q query) error {
			r, err := q.api.GetLimits(q.ctx, &operatorv1.GetLimitsRequest{})
			if err != nil {
				return err
			}
			return a.printLimits(r.GetLimits(), r.GetRevision())
		}),
	}
}

func newLimitsSetCmd(a *App) *cobra.Command {
	return &cobra.Command{
		Use:   "set NAME=VALUE…",
		Short: "Change limits; 0 means the default",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("%s needs at least one NAME=VALUE", cmd.CommandPath()).WithHint("usage: %s", cmd.UseLine())
			}
			return nil
		},
		RunE: a.ask(func(q query) error {
			r, err := q.api.GetLimits(q.ctx, &operatorv1.GetLimitsRequest{})
			if err != nil {
				return err
			}
			l := &commandv1.Limits{}
			proto.Merge(l, r.GetLimits())
			if err := setLimits(l, q.args); err != nil {
				return err
			}
			if _, err := q.api.SetLimits(q.ctx, &operatorv1.SetLimitsRequest{Limits: l, IfLimits: r.GetLimits()}); err != nil {
				return err
			}
			r, err = q.api.GetLimits(q.ctx, &operatorv1.GetLimitsRequest{})
			if err != nil {
				return err
			}
			return a.printLimits(r.GetLimits(), r.GetRevision())
		}),
	}
}

func setLimits(l *commandv1.Limits, args []string) error {
	fields := l.ProtoReflect().Descriptor().Fields()
	for _, arg := range args {
		name, value, ok := strings.Cut(arg, "=")
		if !ok {
			return usage("%q is not NAME=VALUE", arg).WithHint("for example sessionsPerIdentity=32; `trivet operator limits get` lists the names")
		}
		f := fields.ByJSONName(name)
		if f == nil {
			var names []string
			for _, v := range viewLimits(l) {
				names = append(names, v.Name)
			}
			err := usage("there is no limit %q", name).WithHint("limits are %s", strings.Join(names, ", "))
			if near := config.Closest(name, names); near != "" {
				err = err.WithHint("did you mean %q?", near)
			}
			return err
		}
		bits := 64
		if f.Kind() == protoreflect.Uint32Kind {
			bits = 32
		}
		n, err := strconv.ParseUint(value, 10, bits)
		if err != nil {
			return usage("%s: %q is not a whole number from 0 to %d", name, value, uint64(1)<<bits-1).WithHint("0 means the default")
		}
		if bits == 32 {
			l.ProtoReflect().Set(f, protoreflect.ValueOfUint32(uint32(n)))
		} else {
			l.ProtoReflect().Set(f, protoreflect.ValueOfUint64(n))
		}
	}
	return nil
}
