// Package stack opens what lies below a mount as one piece: device, queue pairs,
// RC client, store and cache, and closes it in reverse order.
//
// The choice between RDMA and HTTP as such is made here, once, when the stack is
// opened; the choice for each transfer is the store's.
package stack
