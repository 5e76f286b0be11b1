// Package demo is the guided main job: it starts a cluster, intercepts the
// sample's traffic, breaks things, and says what it measured.
//
// Every claim it prints comes from traffic that it sent itself or from what
// the servers answered; a step that does not hold fails the demo.
package demo
