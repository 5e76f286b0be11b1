// Package authz says which role may call which rpc.
//
// The table is the only place where that is written; an rpc without a row is
// refused (a test walks every registered service and fails on one). The role
// comes from the caller's certificate. What a role may do with which object,
// its own session for instance, is for the handlers and the state machine.
package authz
