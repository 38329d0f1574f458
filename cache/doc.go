// Package cache holds object bytes in pinned memory: read blocks that an RDMA
// peer writes into, and staging for writes, both out of one hard byte budget.
//
// # Memory
//
// One verbs.Memory of Options.Size bytes is divided into slabs (an eighth of
// the size, a power of two, at most 64 MiB). A slab is one MR, registered when
// its first region is needed. With several rails each slab belongs to one of them,
// and has pages of its NUMA node. Within a slab a buddy allocator gives out
// regions in units of 16 KiB; the tail of a rounded-up region goes back at
// once, so an object of 1.2 MiB costs 1.2 MiB. What is allocated never exceeds
// Options.Size.
//
// The lower half of the slabs serves reads only, the upper half serves both.
// Reads prefer low slabs, staging high ones, and while a writer waits for room
// readers stay out of the upper half. So each side always has half of the
// budget, and a reader never waits for a writer to give something back.
//
// At a time a registered slab has one use. The MR of reads lets peers write, that of
// staging gives them no right at all: the server of a session that is kept for
// more transfers still has a QP, and the rkey of each MR that it was told, so bytes
// that exist nowhere else must not lie there. A slab changes its use when it is
// empty; for staging all its blocks are evicted at once, and readers take it back
// only after some time, or when they have nothing else. Where nothing is
// registered, and in a cache of a single slab, staging and blocks mix.
//
// # Region states
//
//	free → filling → resident → draining → free
//	free → staging → free
//	filling, staging → quarantined
//
// A region is filling while a Source may write into it, on a peer's behalf or
// its own. It leaves that state only when Source.Read returned, which is the
// Source's word that its transfers are over. An error that wraps
// verbs.ErrUnsafe takes that word back: the region is quarantined, which means
// never used again, its MR never closed and its memory never unmapped.
// After any other RDMA transfer that failed when the peer knew the rkey, also if
// the bytes came by HTTP then, the slab is retired: its blocks go as soon as nobody
// reads them, no region is allocated in it, and once empty it is registered anew. A
// slab with quarantined memory cannot be, and a cache with a single slab goes on
// using it until it happens to be empty.
//
// Draining regions are no longer found but still referenced.
//
// # Blocks
//
// An object version is (bucket, key, ETag, size). Its file is laid over with
// slots of BlockSize, each with units of SmallBlock. A block is one region with
// the bytes of a run of units inside one slot, cut at the end of the object.
// Blocks never overlap; the run's length is chosen at the miss: what was asked
// for at random reads, up to a whole slot at sequential ones. One fetch
// fills one block; whoever wants it meanwhile waits for that fetch. A reader
// that gives up does not end the fetch. A fetch that fails is told to those who
// waited for it and forgotten.
//
// When a Source answers store.ErrChanged the version is detached: resident
// blocks stay readable through handles that are open, each miss is ErrChanged,
// and the next Open starts anew.
//
// # Read-ahead
//
// Each Stream follows a few interleaved sequential runs. A run's window starts
// at 1 MiB and doubles as it is consumed, up to ReadAhead or the stream's part
// of half of the readable budget. Read-ahead takes free memory or evicts what
// is cold, never another stream's unread read-ahead, and never waits.
//
// # Eviction
//
// Only unreferenced resident blocks are evicted: first those that a sequential
// reader consumed and no other is about to want, unless blocks read otherwise
// are much colder; unread read-ahead only for a reader that has to have a
// block now, the newest first because it is needed last. Eviction clears an
// aligned window of memory, so that each one makes room of the wanted size.
//
// A reader that finds no room takes a smaller block, and then waits its turn.
// It never fails for lack of room, except when quarantine took all of it.
//
// # Locks
//
// Cache.mu guards everything but registration and is held for short, without
// I/O. Slab.regMu serializes registration of one slab; it is taken
// without Cache.mu, and Cache.mu may be taken under it. No lock is held while
// Source.Read runs or while anybody waits.
package cache
