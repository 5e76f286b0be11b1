package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"trivet/client"
	"trivet/internal/render"
)

// contextView is a context without its secrets.
type contextView struct {
	Name      string   `json:"name"`
	Current   bool     `json:"current"`
	Servers   []string `json:"servers"`
	Namespace string   `json:"namespace,omitempty"`
	Bundle    string   `json:"bundle,omitempty"`
	// Identity is who one is in this context; absent if the bundle cannot be
	// read.
	Identity string `json:"identity,omitempty"`
}

func viewContext(c client.Context, current bool) contextView {
	v := contextView{
		Name: c.Name, Current: current, Servers: append([]string{}, c.Servers...), Namespace: c.Namespace, Bundle: c.Bundle,
	}
	if src, err := c.Source(); err == nil {
		v.Identity = src.Bundle().ID.String()
	}
	return v
}

func newContextCmd(a *App) *cobra.Command {
	context := group(&cobra.Command{
		Use:   "context",
		Short: "Which clusters there are, and who one is there",
		Long: `Which clusters there are, and who one is there.

Contexts are in the file that TRIVET_CONFIG names, else in
$XDG_CONFIG_HOME/trivet/config.yaml.`,
	})
	context.AddCommand(newContextListCmd(a), newContextUseCmd(a), newContextShowCmd(a))
	return context
}

func newContextListCmd(a *App) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the contexts",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			f, err := a.ContextFile()
			if err != nil {
				return err
			}
			current, _ := f.Get(a.flags.context) // none is current: none is marked
			items := views(f.Contexts, func(c client.Context) contextView { return viewContext(c, c.Name == current.Name) })
			return render.List(a.Printer(), items, 0, "contexts", []render.Column[contextView]{
				{Name: "NAME", Value: func(c contextView) string { return c.Name }},
				{Name: "CURRENT", Value: func(c contextView) string { return yesNo(c.Current) }},
				{Name: "NAMESPACE", Value: func(c contextView) string { return c.Namespace }},
				{Name: "SERVERS", Value: func(c contextView) string { return strings.Join(c.Servers, ",") }},
				{Name: "IDENTITY", Wide: true, Value: func(c contextView) string { return c.Identity }},
			})
		},
	}
}

func newContextUseCmd(a *App) *cobra.Command {
	return &cobra.Command{
		Use:   "use NAME",
		Short: "Make a context the current one",
		Args:  oneArg("the NAME of a context"),

		ValidArgsFunction: firstArgument(a.contextNames),
		RunE: func(_ *cobra.Command, args []string) error {
			f, err := a.ContextFile()
			if err != nil {
				return err
			}
			if err := f.Use(args[0]); err != nil {
				return err
			}
			if err := f.Save(); err != nil {
				return err
			}
			a.Printer().Notef("context %s is current", args[0])
			return nil
		},
	}
}

func newContextShowCmd(a *App) *cobra.Command {
	return &cobra.Command{
		Use:   "show [NAME]",
		Short: "Show a context, the current one by default; private keys are not shown",

		ValidArgsFunction: firstArgument(a.contextNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return oneArg("")(cmd, args)
			}
			f, err := a.ContextFile()
			if err != nil {
				return err
			}
			current, _ := f.Get("") // none is current: none is marked
			name := a.flags.context
			if len(args) == 1 {
				name = args[0]
			}
			c, err := f.Get(name)
			if err != nil {
				return err
			}
			v := viewContext(c, c.Name == current.Name)
			return render.Object(a.Printer(), v, func(w io.Writer) error {
				data, err := yaml.Marshal(v)
				if err != nil {
					return fmt.Errorf("encode output: %w", err)
				}
				_, err = w.Write(data)
				return err
			})
		},
	}
}
