// Package bench measures GET and PUT of one endpoint over RDMA and over HTTP,
// over sizes and concurrency, straight on the store: what perftest is to verbs.
// There is no FUSE and no cache in it.
//
// The transports take turns within each point, so that what else happens on
// the machine meets both of them.
package bench
