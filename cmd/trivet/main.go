package main

import (
	"os"

	"github.com/spf13/cobra"
)

// extraCommands are the commands of the long-running roles and of the local
// cluster. One that has the name of a noun (node) adds to it.
var extraCommands = []func(*App) *cobra.Command{
	newServerCmd, newNodeCmd, newCACmd, newDevCmd, newDemoCmd, newSampleCmd, newConfigCmd,
	newTokenCmd, newLoginCmd, newIdentityCmd,
}

func main() {
	app := NewApp(os.Stdin, os.Stdout, os.Stderr, os.LookupEnv)
	ctx, stop := notifyContext()
	code := app.Run(ctx, os.Args[1:], extraCommands...)
	stop()
	os.Exit(code)
}
