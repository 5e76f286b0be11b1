// Package managerapi serves telepresence.manager.Manager.
//
// Handlers read the request, check that the named session belongs to the
// caller, propose a command or read the state, and map the outcome. They hold
// no state of their own; what a stream needs lives as long as the stream.
//
// The rpcs that are not written here answer Unimplemented, on which published
// peers step down to older ones.
package managerapi
