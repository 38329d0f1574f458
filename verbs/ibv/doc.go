// Package ibv is the provider for real RDMA devices: libibverbs, opened with
// dlopen so that one binary runs on machines with and without it.
//
// A C shim (shim.c) holds every use of <infiniband/verbs.h>, so the C compiler
// lays out the structures; Go sees flat structures of the shim only. Without
// that header, or without cgo, the package builds and every entry point returns
// verbs.ErrUnsupported. The header must be of rdma-core; any version will do.
//
// Objects are closed in reverse order of their making; Close returns
// verbs.ErrBusy while dependent objects exist and does nothing the second time.
//
// Locks: each object has its own, held for writing by Close only, and none is
// taken while another object's is held; qp.modifyMu and cq.pollMu come after it.
// device.cqMu is a leaf, under which C is never called, since ibv_destroy_cq and
// ibv_destroy_qp wait for events to be acknowledged.
package ibv
