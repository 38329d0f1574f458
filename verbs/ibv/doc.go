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
// Lock order: QP, MR → CQ, PD → CompChannel → Device. Only a Close holds its
// object's lock for writing, and it takes no other object's lock then. The
// registries (device.cqs, compChannel.cqs) are leaf locks: no call into C is
// made under them, because ibv_destroy_cq waits for events to be acknowledged.
package ibv
