// Package steal takes over new inbound TCP connections of a pod without the
// pod noticing: no restart, no sidecar, no address translation.
//
// Two backends have the same face (Port for an agent, Backend for the process
// that owns it). Worker is the real one: an sk_lookup program in the pod's
// network namespace steers connections for armed keys to a listener of ours in
// that namespace. Proxy is the fallback for where Probe says that this cannot
// be: an ordinary listener in front of the app.
//
// # Who owns what
//
// The kernel objects belong to the node's parent process, the holder: Attach
// makes them, Attachment.Files gives descriptors of them to the traffic
// process, Adopt turns those into a Worker there. The holder never accepts and
// never arms; it keeps listener and link open, so that connections which wait
// in the accept queue survive the traffic process and are served by the next
// one that adopts. Only the holder has the link: when it ends, for whatever
// reason, the kernel detaches the program and the app answers. (When it
// re-executes itself, Handover and Resume carry everything across.)
//
// # What is stolen
//
// A connection is steered when all of this holds, otherwise the kernel finds
// the socket it would have found without us:
//   - its local address and port, or any address and its port, are armed (Key);
//   - it is not the pod's own traffic: remote and local address differ and are
//     not both loopback. That is how DialApp reaches the app, and why a sidecar
//     that calls the app does too. (IPv4 picks an interface's primary address
//     as the source of a call to a secondary one; such a call is not
//     recognised as the pod's own unless the caller binds, as DialApp does.)
//   - the heartbeat is younger than Options.StaleAfter. The traffic process
//     writes it (Beat) from where it proves that it serves; a hang stops the
//     stealing as a crash does.
//
// Established connections are never touched. Keys stay armed when a traffic
// process dies: the next one finds them in ArmedKeys and must reconcile them
// before it beats. A connection can arrive from Listener after Disarm, when it
// was steered before; the caller passes it to the app with DialApp.
//
// # Original destination
//
// The LocalAddr of an accepted connection is the address that the visitor
// dialled (getsockname; SO_ORIGINAL_DST knows nothing of this). OriginalDst
// returns it in the form that keys and DialApp take.
//
// # Concurrency and failure
//
// All methods of Attachment, Worker, Proxy and Beat are safe for concurrent
// use. Attach and Probe return *ErrUnsupported when the machine cannot do it,
// and any other error when it should have been able to. The heartbeat is
// compared with the kernel's clock: the writer must be in the machine's
// initial time namespace.
//
// # Example
//
// In the holder:
//
//	beat, err := steal.NewBeat() // one for all pods of a traffic process
//	ns, err := netns.Open("/proc/4711/ns/net")
//	att, err := steal.Attach(ns, beat, steal.Options{})
//	files, err := att.Files()
//	cmd := exec.Command("/proc/self/exe", "traffic")
//	cmd.ExtraFiles = files.List() // descriptors 3 to 7 of the child
//	err = cmd.Start()
//	files.Close() // the child has its own
//
// In the traffic process:
//
//	files, err := steal.FilesFrom(inherited) // in the order of List
//	w, err := steal.Adopt(files)
//	err = w.Arm(steal.TCPKey(netip.MustParseAddrPort("10.0.0.7:8080")))
//	go beatEvery(100*time.Millisecond, w.Beat)
//	for {
//		conn, err := w.Listener().Accept()
//		// to the laptop, or on to the app:
//		app, err := w.DialApp(ctx, steal.OriginalDst(conn))
//	}
package steal
