// Package seal encrypts what must not stand in clear in a cluster's replicated
// state: environments, the issuing CA's key, ticket keys.
//
// # What it promises
//
// Sealing is deterministic: the same plaintext in the same context under the
// same key gives the same bytes, so that a command which is sent again, or an
// agent that arrives again, changes nothing. That is also all that sealed bytes
// give away: whether two of one context are equal, and how long they are. A
// context names what is sealed and whose it is; bytes that are moved to another
// place do not open there. Sealed bytes name their key, so that old ones open
// after a new key came into use.
//
// # How
//
// A key has 32 random bytes. HKDF-SHA256 makes three of it: one for the nonce
// (HMAC-SHA256 over context and plaintext), one for XChaCha20-Poly1305, one for
// Digest. Nonces have 192 bits, so that two different plaintexts do not share
// one by chance.
//
// # What it does not do
//
// It does not decide which key is in use in a cluster, who may open what, or
// how keys travel; cluster/identity does.
//
// # Concurrency
//
// A Keyring never changes once made and is safe for use by several goroutines.
//
//	ring, err := seal.New()
//	sealed := ring.Seal("intercept/7", plaintext)
//	plaintext, err = ring.Open("intercept/7", sealed)
package seal
