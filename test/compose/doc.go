// Package compose tests the composition of docker-compose.yml: it comes up from
// the image that the repository builds, an intercept of its sample works, and
// what it holds survives a container that is killed, one that is paused and one
// that is cut off.
//
// The test starts a Docker engine of its own when none answers.
package compose
