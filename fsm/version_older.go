//go:build older

package fsm

// CommandVersion is that of a program from before the newest operations: with
// it, tests upgrade a cluster server by server.
const CommandVersion uint32 = 1

func init() {
	for op, a := range appliers {
		if a.minVersion > CommandVersion {
			delete(appliers, op)
		}
	}
}
