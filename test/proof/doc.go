// Package proof holds the long proofs that `make proof` runs. Without
// TRIVET_PROOF=1 its tests skip.
package proof
