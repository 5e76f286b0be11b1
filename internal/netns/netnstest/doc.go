// Package netnstest makes network namespaces for tests: hosts and pods joined
// by veth pairs, with IPv4 and IPv6 addresses.
//
// Everything made for a test is gone when the test ends. What a killed test
// process left behind is removed by the next one: names carry the process id
// (trivet-PID-N, visible to `ip netns`), and names of dead processes are
// reaped before the first namespace is made.
//
// Addresses are 10.77.X.0/24 and fd77:X::/64 with an X that no other link of
// any test process on the machine uses, so links to the machine's own
// namespace (Host) of tests that run at the same time do not collide.
//
//	netnstest.Require(t)
//	visitor, pod := netnstest.New(t), netnstest.New(t)
//	_, end := netnstest.Connect(t, visitor, pod)
//	ln, err := netns.Listen(t.Context(), pod.NS, "tcp", ":8080")
//	conn, err := netns.Dial(t.Context(), visitor.NS, "tcp", end.V4.String()+":8080", nil)
package netnstest
