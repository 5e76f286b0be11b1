// Package peers is this server's way to the others: one shared gRPC connection
// per address, Raft's stream layer over the same port, and the follow-up of
// what the others say about their attachments.
//
// It owns connections, not decisions. Everything speaks TLS with the server's
// own certificate and accepts only the role server at the other end.
package peers
