// Package tunfwd is a network in user space for tests and benches: hosts are
// network namespaces with a TUN device each, and this process carries every IP
// packet from one to the other. What the path between two hosts does to
// packets (cut, loss, delay, jitter, rate) is a Rule per directed pair, changed
// at any time, so that asymmetric and bridge partitions need no packet filter,
// no traffic shaper and no kernel module.
//
// What it promises:
//   - packets of one directed pair keep their order, whatever the jitter;
//   - a rule holds for packets that are read after Set returned; a cut also
//     drops those that were waiting out their delay;
//   - every packet that was read from a device is counted once, as forwarded or
//     as dropped with its cause (Counters), or as stray when it is for nobody
//     here: a test can assert that its fault happened;
//   - what waits on a pair is bounded in bytes, beyond that the newest packet
//     is dropped, as a router does.
//
// What it does not promise: packets that the kernel drops because this process
// does not get to read them show in the device's own statistics only.
//
// Hosts have IPv4 addresses of one subnet, in the order in which they were
// added, and loopback; they reach nothing else. The namespaces have no names:
// they go when the Network is closed and nothing in them runs any more.
//
// A Network is safe for concurrent use. Making one needs CAP_NET_ADMIN and
// CAP_SYS_ADMIN and /dev/net/tun.
//
//	n := tunfwd.New(tunfwd.Options{})
//	defer n.Close()
//	a, err := n.Add("a")
//	b, err := n.Add("b")
//	n.Set("a", "b", tunfwd.Rule{Loss: 0.1})
//	conn, err := netns.Dial(ctx, a.NS, "tcp", b.Addr.String()+":80", nil)
package tunfwd
