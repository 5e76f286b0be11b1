// Package limits bounds what one identity may ask of one server: open watches
// and tunnels, and calls per second. What an identity may hold in the state is
// bounded by the state machine; connections are bounded by the port.
//
// A refusal is ResourceExhausted with a reason that never changes, names the
// limit and who can raise it, and costs nobody else anything. Servers are not
// bounded: they speak for all their callers.
//
// A Limiter is safe for use by several goroutines. It starts none.
package limits
