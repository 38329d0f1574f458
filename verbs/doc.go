// Package verbs has the objects of libibverbs under their own names: device,
// protection domain, memory region, completion queue and queue pair, with Go
// errors and byte slices. Providers in the packages below implement them: shm, a
// software device between processes of one host, and ibv, libibverbs itself.
// Package verbstest checks any provider.
//
// Pool hands out recycled QPs on shared CQs. Its lock order is mux.mu → Conn.mu →
// the device; Pool.mu is taken last, except that it is held while a CQ is made or
// destroyed.
package verbs
