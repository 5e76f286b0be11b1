// Package archive is the form in which a snapshot of the state leaves a cluster
// and comes back: a tar of three files, always in this order.
//
//	meta.json   where the state comes from and what is in it (Meta)
//	state.bin   the state machine's own snapshot; secrets in it are sealed
//	SHA256SUMS  of the two, in the format of sha256sum
//
// Open reads and decodes the whole archive before it returns anything, and
// refuses one in which any byte, the tar's own included, is not what Write would
// have written. Whoever restores therefore has a state that can be restored.
//
// Functions here keep no state and may be called from any goroutine.
package archive
