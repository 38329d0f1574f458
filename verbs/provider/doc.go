// Package provider opens the RDMA device that suits an endpoint: a real one
// through libibverbs when the route to the endpoint leads over it, the software
// device when the endpoint is on this machine. It has no state of its own.
package provider
