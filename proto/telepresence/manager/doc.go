// Package manager holds the messages and enums of the published
// telepresence.manager contract: sessions, agents, intercepts, workloads,
// cluster information, names and tunnel frames.
//
// Every name, number and type in manager.proto is the contract's and is never
// changed to suit trivet. Fields that only older peers know stay declared, so
// that those peers can be served and their numbers cannot get another meaning.
// What the messages mean to a manager is decided by the code that handles them,
// not here.
//
// The package is generated and has no dependency on gRPC: whoever needs the
// data alone can import it. The service is in package managersvc, the agent's
// in package agentsvc. Messages follow the rules of Go protobuf: reading one
// from several goroutines is safe, changing it needs an owner.
//
// To read a session that may lack the client's install id:
//
//	if s.InstallId != nil {
//		id := s.GetInstallId() // present, possibly empty
//	}
package manager
