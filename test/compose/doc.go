// Package compose tests docker-compose.yml: it comes up from the image that the
// repository builds, an intercept of its sample works, and what it holds
// survives a container that is killed, one that is paused and one that is cut
// off, while writes go on.
//
// Where no Docker engine answers, the test starts one in a network namespace of
// its own, so that bridges and firewall rules end with it. It uses
// docker-compose or else docker compose; TRIVET_COMPOSE names another.
package compose
