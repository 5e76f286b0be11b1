// Package identity is what a server knows and does about identities: it gives
// out certificates for tokens and for certificates that run out, keeps the
// issuing CA's key and the seal keys of the cluster, hides secrets in commands,
// and tells who was put on the deny-list.
//
// # Keys
//
// The issuing CA's key and newer seal keys are rows of the replicated state,
// sealed; the first seal key comes with a server's bundle and stays in its data
// directory, as does a copy of whatever came later. A new seal key is sealed
// under the one before it, which every server has, so it reaches all of them
// with the log, and what is sealed with it comes after it. Every server can
// open the issuing CA's key, so any of them enrols and renews.
//
// # Enrolment
//
// A token is consumed by a command that names the key to be certified: one use
// is one use on whatever server, through any failover, and the same key gets
// its certificate again. Only the SHA-256 of a token's secret is replicated,
// and nothing is written for a caller who does not know the secret.
//
// # Environments
//
// A Sealer is given to the engine, which lets it replace the environments in a
// command by sealed bytes after the command's digest was taken. They are opened
// for the owner of an intercept alone. What is too large to be kept is left out
// and counted: it keeps no agent from arriving.
//
// # Concurrency
//
// All types are safe for use by several goroutines. Authority.Run works in the
// background until its context ends.
package identity
