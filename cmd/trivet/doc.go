// Command trivet is the manager's server, the node daemon and the command line
// in one binary; the roles are subcommands.
//
// This package parses flags, wires packages together and renders; it holds no
// rules of its own. What it promises:
//
//   - Results go to standard output, everything else to standard error.
//   - Every command has an exit code from the table of the package render.
//   - A value comes from the first of: flag, environment (TRIVET_CONTEXT,
//     TRIVET_SERVER, TRIVET_NAMESPACE, TRIVET_OUTPUT, TRIVET_TIMEOUT,
//     TRIVET_CONSISTENCY; TRIVET_CONFIG for the context file), file, default.
//   - Interrupted once, a command cleans up; interrupted twice, it ends.
//
// One file per noun. Commands are made by functions of an *App, which carries
// what the outside world is to them, so that tests run them in process.
package main
