//go:build !older

package fsm

// CommandVersion is the newest command format this program knows.
const CommandVersion uint32 = 2
