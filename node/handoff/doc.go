// Package handoff is the conversation between the two processes of a node: the
// holder, which owns descriptors and outlives the other, and the traffic
// process, which uses them.
//
// It runs over a SOCK_SEQPACKET pair that the traffic process inherits as
// descriptor 3. Each packet is one JSON message; descriptors travel with it
// (SCM_RIGHTS). The traffic process says hello, the holder answers with all
// the other needs to begin, settings included; from then on:
//
//   - the traffic process asks for attachments to pods, which the holder makes
//     or already has, and gives them up again (Client.Attach, Client.Detach);
//   - it tells its status, and beats where no shared map can carry the
//     heartbeat (Client.Status, Client.Beat);
//   - the holder asks for the metrics of the traffic process, which writes
//     them into a pipe that came with the question.
//
// The end of one side is the end of the socket for the other: Server.Serve
// returns, Client.Done is closed.
//
// Both processes run the same executable, so the version in hello guards only
// against one that was replaced on disk between two starts. Server and Client
// may be used from any goroutine. Neither starts a goroutine of its own but
// Client.Run and Server.Serve, which the owner calls, and what answers one
// question, which they wait for.
package handoff
