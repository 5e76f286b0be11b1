// Package contract holds the servers to the published contract of
// telepresence.manager.Manager, line by line: what each rpc answers, what each
// watch shows and when it ends, how tunnels go, and the cases of the published
// manager's own tests. It knows the product by its binary alone: three server
// processes, asked through each of them in turn, by the peers of package peersim
// and by plain calls.
//
// Cases are rows of tables, named after what they assert. Each gets a namespace
// with workloads, and identities, of its own, so that all of them run at the
// same time on one cluster.
package contract
