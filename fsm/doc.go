// Package fsm is the replicated state of a trivet manager: a pure function
// from commands to state, results and events.
//
// It owns what sessions, intercepts, nodes, workloads, identities, tokens and
// configuration are, the rules by which commands change them, the answers that
// make commands safe to repeat, the events that watchers see, the snapshot
// format and the digest by which replicas compare themselves. It does not own
// what must be done about any of it (package actors), the log (package
// cluster), nor who may call what: a command arrives with an authenticated
// identity, and the rules here only narrow what that identity may do.
//
// # Purity
//
// Equal commands in equal order give equal states on every server. Therefore
// nothing here reads a clock, draws a random number, depends on the order of a
// map, starts a goroutine or does I/O other than on the streams given for
// snapshots. Time and ids are in the commands, stamped by the leader; time
// never runs backwards. A test enforces it.
//
// # Concurrency
//
// One goroutine calls Apply and Restore. Everybody else reads: Root returns an
// immutable state, published as a whole after each log entry and read without
// a lock. Rows, in states, results and events alike, are shared and must not
// be modified. A Cursor belongs to one goroutine; it polls a bounded ring and
// never slows the writer down.
//
// # Failure
//
// A command that cannot be carried out is refused with a Result; all replicas
// refuse it alike. Apply returns an error only when this replica cannot go on:
// an operation of a newer program, or a broken invariant. The caller then
// stops serving; the state stays what it was before the entry.
//
// # Example
//
//	m := fsm.New(fsm.Options{})
//	results, err := m.Apply(fsm.Position{Index: 7, Term: 2}, entry)
//
//	root := m.Root() // snapshot …
//	cursor := m.WatchFrom(root)
//	for {
//		<-cursor.Wait()
//		for _, e := range cursor.Next().Events { // … then changes
//			fmt.Println(e.Revision, e.Op, e.Table, e.Key)
//		}
//	}
package fsm
