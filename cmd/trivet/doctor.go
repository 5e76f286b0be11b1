package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"trivet/client"
	"trivet/internal/errs"
	"trivet/internal/pki"
	"trivet/internal/render"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// Levels of a finding, in rising order.
var levels = []string{"ok", "warning", "critical"}

// finding is one thing that doctor looked at.
type finding struct {
	Where   string `json:"where"`
	Check   string `json:"check"`
	Level   string `json:"level"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// maxSkew is the difference of clocks at which certificates and leases start
// to go wrong.
const maxSkew = 2 * time.Second

func newDoctorCmd(a *App) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look for what is wrong, here and on every server; exits 1 if something is",
		Long: `Look for what is wrong: the context and its certificate, whether each server can
be reached, what each says of its own health, whether they agree on who leads
and on the state. Exits 1 when a finding is critical.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := a.Timeout(cmd.Context())
			defer cancel()
			c, err := a.Context()
			if err != nil {
				return err
			}
			found := a.examine(ctx, c)
			worst := "ok"
			for _, f := range found {
				if slices.Index(levels, f.Level) > slices.Index(levels, worst) {
					worst = f.Level
				}
			}
			if !all && !a.Printer().Format.Structured() {
				found = slices.DeleteFunc(found, func(f finding) bool { return f.Level == "ok" && worst != "ok" })
			}
			if err := render.List(a.Printer(), found, 0, "findings", []render.Column[finding]{
				{Name: "WHERE", Value: func(f finding) string { return f.Where }},
				{Name: "CHECK", Value: func(f finding) string { return f.Check }},
				{Name: "LEVEL", Value: func(f finding) string { return f.Level }},
				{Name: "WHAT", Value: func(f finding) string { return f.Message }},
				{Name: "WHAT TO DO", Value: func(f finding) string { return f.Hint }},
			}); err != nil {
				return err
			}
			if worst == "critical" {
				return errs.New(codes.Unknown, "UNHEALTHY", "something critical was found").WithHint("see the findings above")
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "show what is fine, too")
	return cmd
}

// examine makes all findings.
func (a *App) examine(ctx context.Context, c client.Context) []finding {
	found := a.examineContext(c)
	var (
		mu     sync.Mutex
		voices = map[string][]string{}
		times  []time.Duration
	)
	add := func(f ...finding) {
		mu.Lock()
		defer mu.Unlock()
		found = append(found, f...)
	}
	err := eachServer(ctx, c, probeTimeout, func(ctx context.Context, i int, api operatorsvc.OperatorClient, err error) {
		addr := c.Servers[i]
		unreachable := func(err error) {
			add(finding{addr, "reachable", "critical", render.Cause(err), "is the server running, and is the address right? trivet context show"})
		}
		if err != nil {
			unreachable(err)
			return
		}
		asked := a.Now()
		st, err := api.Status(ctx, &operatorv1.StatusRequest{})
		if err != nil {
			unreachable(err)
			return
		}
		add(finding{st.GetServer(), "reachable", "ok", "answers at " + addr, ""})
		mu.Lock()
		voices[st.GetLeader()] = append(voices[st.GetLeader()], st.GetServer())
		mu.Unlock()
		h, err := api.Health(ctx, &operatorv1.HealthRequest{})
		if errs.Code(err) == codes.PermissionDenied {
			add(finding{st.GetServer(), "health", "ok", "not looked at: only operators and viewers may", ""})
			return
		}
		if err != nil {
			unreachable(err)
			return
		}
		for _, x := range h.GetChecks() {
			add(finding{st.GetServer(), x.GetName(), x.GetLevel(), x.GetMessage(), x.GetHint()})
		}
		// The middle of the call is the best guess at when the server looked.
		mid := asked.Add(a.Now().Sub(asked) / 2)
		mu.Lock()
		times = append(times, h.GetTime().AsTime().Sub(mid))
		mu.Unlock()
	})
	if err != nil {
		add(finding{"context", "servers", "critical", render.Cause(err), errs.From(err).Hint})
		return found
	}
	found = append(found, agreement(voices)...)
	found = append(found, clocks(times)...)
	if v, err := collectDigests(ctx, c); err == nil {
		f := finding{"manager", "state", "ok", "all servers have the same state", ""}
		switch {
		case !v.Comparable:
			f.Message = "not compared: the servers were at different revisions, or some did not answer"
		case !v.Equal:
			f.Level, f.Message, f.Hint = "critical", "the servers' states differ at the same revision", "trivet operator digest shows which"
		}
		found = append(found, f)
	}
	slices.SortStableFunc(found, func(x, y finding) int { return slices.Index(levels, y.Level) - slices.Index(levels, x.Level) })
	return found
}

func (a *App) examineContext(c client.Context) []finding {
	src, err := c.Source()
	if err != nil {
		return []finding{{"context", "certificate", "critical", render.Cause(err), errs.From(err).Hint}}
	}
	return []finding{certificateFinding(src.Bundle(), a.Now())}
}

func certificateFinding(b *pki.Bundle, now time.Time) finding {
	f := finding{"context", "certificate", "ok", fmt.Sprintf("%s, valid until %s", b.ID, b.NotAfter.UTC().Format(time.RFC3339)), ""}
	if err := b.ValidAt(now); err != nil {
		f.Level, f.Message, f.Hint = "critical", render.Cause(err), errs.From(err).Hint
	} else if now.After(b.RenewAt()) {
		f.Level, f.Hint = "warning", "it is due for renewal: trivet login, or ask for a new one"
	}
	return f
}

// agreement says whether all servers name the same leader.
func agreement(voices map[string][]string) []finding {
	f := finding{"manager", "leader", "ok", "", ""}
	switch {
	case len(voices) == 0:
		return nil
	case len(voices) > 1:
		f.Level, f.Message = "warning", fmt.Sprintf("the servers name different leaders: %v", voices)
		f.Hint = "look again in a moment; if it stays, some of them cannot reach each other"
	default:
		for leader, servers := range voices {
			f.Message = fmt.Sprintf("%s leads, %d servers say so", leader, len(servers))
			if leader == "" {
				f.Level, f.Message = "critical", "nobody leads"
				f.Hint = "a majority of the servers has to run and reach each other"
			}
		}
	}
	return []finding{f}
}

// clocks compares the clocks of the servers with each other, by their
// differences to this machine's.
func clocks(offsets []time.Duration) []finding {
	if len(offsets) < 2 {
		return nil
	}
	spread := slices.Max(offsets) - slices.Min(offsets)
	f := finding{"manager", "clocks", "ok", fmt.Sprintf("the servers' clocks are within %s of each other", spread.Round(time.Millisecond)), ""}
	if spread > maxSkew {
		f.Level, f.Hint = "critical", "synchronise the servers' clocks"
		f.Message = fmt.Sprintf("the servers' clocks are %s apart", spread.Round(time.Millisecond))
	}
	return []finding{f}
}
