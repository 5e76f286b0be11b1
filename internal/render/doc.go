// Package render turns results and errors into what a command prints.
//
// It owns the output formats (table, wide, json, yaml, jsonl), the look of
// tables, the look of errors and the exit codes; it knows no command and no
// server. What it promises:
//
//   - Results go to Printer.Out and nothing else does; notes, warnings and
//     errors go to Printer.Err. A pipe reads results only.
//   - JSON is stable: keys are those of the json tags of the value, lists are
//     {"items":[...],"revision":N}, an empty list is []. Fields may be added.
//   - An error is one line of cause and, where there is one, a line of what to
//     do; with a structured format it is {"error":{...}} on Err. The words
//     "rpc error" never reach a user.
//   - One table gives each gRPC code its exit code, see ExitCode.
//   - Text from outside cannot drive the terminal: control characters are
//     shown as '?'.
//
// A Printer is for one goroutine at a time. Nothing here starts goroutines or
// reads a clock.
//
//	p := &render.Printer{Out: os.Stdout, Err: os.Stderr, Format: render.Table}
//	err := render.List(p, nodes, revision, "nodes", []render.Column[Node]{
//		{Name: "NAME", Value: func(n Node) string { return n.Name }},
//	})
//	if err != nil {
//		p.Error(err)
//		os.Exit(render.ExitCode(err))
//	}
package render
