package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"trivet/internal/build"
	"trivet/internal/render"
)

// buildView describes the binary.
type buildView struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersionCmd(a *App) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version of this binary",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			v := thisBuild()
			return render.Object(a.Printer(), v, func(w io.Writer) error {
				commit := "commit " + v.Commit
				if v.Modified {
					commit += " (modified)"
				}
				_, err := fmt.Fprintf(w, "trivet %s, %s, %s, %s\n", v.Version, commit, v.Go, v.Platform)
				return err
			})
		},
	}
}

// Version is what this binary's servers and nodes say about themselves.
func Version() string { return build.Version }

func thisBuild() buildView {
	v := buildView{
		Version: build.Version, Commit: build.Commit(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.modified" {
				v.Modified = s.Value == "true"
			}
		}
	}
	return v
}
