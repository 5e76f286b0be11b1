package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"trivet/client"
	"trivet/internal/render"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// completionTime bounds what the shell waits for a cluster that does not
// answer.
const completionTime = time.Second

// completions is the type of cobra's functions that complete.
type completions = func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective)

// firstArgument completes the first argument only.
func firstArgument(fn completions) completions {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return fn(cmd, args, prefix)
	}
}

// names completes from what ask returns. What
// goes wrong completes nothing: there is no place to say why.
func (a *App) names(ask func(ctx context.Context, api operatorsvc.OperatorClient) ([]string, error)) completions {
	return func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
		defer cancel()
		c, err := a.Context()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		pool, err := client.Dial(ctx, c, client.Options{Consistency: client.Stale})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer pool.Close()
		all, err := ask(ctx, operatorsvc.NewOperatorClient(pool))
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return withPrefix(all, prefix), cobra.ShellCompDirectiveNoFileComp
	}
}

func withPrefix(all []string, prefix string) []string {
	var out []string
	for _, name := range all {
		if strings.HasPrefix(name, prefix) {
			out = append(out, render.Clean(name))
		}
	}
	return out
}

func (a *App) interceptNames() completions {
	return a.names(func(ctx context.Context, api operatorsvc.OperatorClient) ([]string, error) {
		r, err := api.ListIntercepts(ctx, &operatorv1.ListInterceptsRequest{Namespace: a.flags.namespace})
		var out []string
		for _, i := range r.GetIntercepts() {
			out = append(out, i.GetName())
		}
		return out, err
	})
}

func (a *App) workloadNames() completions {
	return a.names(func(ctx context.Context, api operatorsvc.OperatorClient) ([]string, error) {
		r, err := api.ListWorkloads(ctx, &operatorv1.ListWorkloadsRequest{Namespace: a.flags.namespace})
		var out []string
		for _, w := range r.GetWorkloads() {
			out = append(out, w.GetName())
		}
		return out, err
	})
}

func (a *App) serverNames() completions {
	return a.names(func(ctx context.Context, api operatorsvc.OperatorClient) ([]string, error) {
		r, err := api.Status(ctx, &operatorv1.StatusRequest{})
		var out []string
		for _, s := range r.GetServers() {
			out = append(out, s.GetName())
		}
		return out, err
	})
}

func (a *App) policyNames() completions {
	return a.names(func(ctx context.Context, api operatorsvc.OperatorClient) ([]string, error) {
		r, err := api.ListPolicies(ctx, &operatorv1.ListPoliciesRequest{})
		var out []string
		for _, p := range r.GetPolicies() {
			out = append(out, p.GetName())
		}
		return out, err
	})
}

// contextNames completes from the context file.
func (a *App) contextNames(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	f, err := a.ContextFile()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return withPrefix(f.Names(), prefix), cobra.ShellCompDirectiveNoFileComp
}

// choices completes from a fixed list.
func choices(words ...string) completions {
	return func(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return withPrefix(words, prefix), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFlag registers fn for a flag that the program itself defined.
func completeFlag(cmd *cobra.Command, flag string, fn completions) {
	if err := cmd.RegisterFlagCompletionFunc(flag, fn); err != nil {
		panic(err) // a flag of another name: a mistake of this program
	}
}
