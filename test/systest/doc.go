// Package systest runs the product as its users do: the trivet binary as
// processes of their own, nginx from Debian as the app and as the developer's
// process, and curl or plain sockets as visitors, each in its place in the
// network.
//
// A Cluster is three servers and a node on the machine's own namespace, a pod
// (a namespace with nginx in it) and a visitor (another namespace with a veth
// pair to the pod). Nothing in it is made faster or more patient than what a
// user gets.
//
// Everything ends with the test that started it, also when it fails, and with
// the test process, also when that is killed. What the processes wrote is kept
// when a test fails; the test's output says where.
//
// Functions that take a testing.TB end the test on errors of the environment;
// what a test is about comes back as a value. They may be called from the
// test's own goroutine only, the methods of Visitor from any.
//
//	func TestMain(m *testing.M) { os.Exit(systest.Main(m)) }
//
//	func TestVisitorsReachTheApp(t *testing.T) {
//		systest.Require(t, systest.NGINX)
//		c := systest.Start(t)
//		...
//	}
package systest
