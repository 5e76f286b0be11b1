// Package bench measures trivet's servers. Every bench runs real processes,
// prints what it did as one Result, and asserts nothing: ratios within one run
// are the truth, absolute figures describe the machine they were taken on.
//
// A store is three server processes, of trivet or of etcd, with their data on
// the disk that the bench was given. All stores of a bench run at the same
// time and are measured in turns, round by round, so that what else the
// machine does hits all of them alike. They are driven by one load generator
// over one gRPC client with a codec that passes bytes through: what differs
// between two rows is the servers.
//
// The processes of a bench die with it, also when it is killed.
package bench
