package cache

import (
	"fmt"
	"log/slog"
	"math/bits"

	"s3rdmafs/verbs"
)

const (
	// MinSize is the smallest budget New accepts, in bytes.
	MinSize = 1 << 20

	unitSize    = 16 << 10 // granule of memory
	minSlab     = 128 << 10
	maxSlab     = 64 << 20
	slabsWanted = 8

	defaultBlockSize  = 4 << 20
	defaultSmallBlock = 128 << 10
	defaultReadAhead  = 32 << 20
	firstWindow       = 1 << 20 // read-ahead window of a run just detected
	wholeObject       = 2 << 20 // an object up to this is fetched at once by a first read at 0
)

// Options configure a Cache.
type Options struct {
	// Size is the hard budget in bytes for read blocks and write staging
	// together, at least MinSize. It is rounded down to 16 KiB.
	Size int64
	// PD registers the memory; it is short for one rail. Without PD and Rails
	// the memory stays unregistered: segments have no MR, and nothing is pinned.
	PD verbs.PD
	// Rails are the devices among which the slabs are divided. Allocation takes
	// them in turn, those first that are usable.
	Rails []Rail
	// MaxMRs is how many MRs the cache may make; 0 means no limit.
	MaxMRs int
	// MemlockLimit is how many bytes the process may pin; 0 means no limit.
	// It is looked at only when memory is registered.
	MemlockLimit uint64
	// Source fetches object bytes.
	Source Source
	// BlockSize is the largest read block, a power of two; default 4 MiB,
	// cut to a slab.
	BlockSize int64
	// SmallBlock is the smallest fetch of an object that is larger, a power
	// of two of at least 16 KiB; default 128 KiB, cut to BlockSize.
	SmallBlock int64
	// ReadAhead is the largest read-ahead window of one sequential run in
	// bytes; default 32 MiB, negative means none.
	ReadAhead int64
	// Logger may be nil.
	Logger *slog.Logger
}

// Rail is a device that serves a part of the memory.
type Rail struct {
	PD verbs.PD
	// NUMANode is the node whose pages the rail's slabs shall have; negative: any.
	NUMANode int
	// Usable tells whether the rail can carry transfers now; nil: always. It is
	// called under the cache's lock.
	Usable func() bool
}

// setDefaults completes o and returns the slab size.
func (o *Options) setDefaults() (slabSize int, err error) {
	if o.Source == nil {
		return 0, fmt.Errorf("%w: no source", ErrInvalid)
	}
	if o.Size < MinSize {
		return 0, fmt.Errorf("%w: size of %d bytes, need at least %d", ErrInvalid, o.Size, MinSize)
	}
	o.Size -= o.Size % unitSize
	if o.PD != nil && len(o.Rails) == 0 {
		o.Rails = []Rail{{PD: o.PD, NUMANode: -1}}
	}
	if len(o.Rails) > 0 && o.MemlockLimit != 0 && uint64(o.Size) > o.MemlockLimit {
		return 0, fmt.Errorf("cache of %d bytes exceeds the locked-memory limit of %d bytes (ulimit -l): %w",
			o.Size, o.MemlockLimit, verbs.ErrMemlock)
	}
	if o.BlockSize == 0 {
		o.BlockSize = defaultBlockSize
	}
	if o.SmallBlock == 0 {
		o.SmallBlock = min(defaultSmallBlock, o.BlockSize)
	}
	if o.ReadAhead == 0 {
		o.ReadAhead = defaultReadAhead
	}
	if !powerOfTwo(o.BlockSize) || !powerOfTwo(o.SmallBlock) || o.SmallBlock < unitSize || o.SmallBlock > o.BlockSize {
		return 0, fmt.Errorf("%w: block sizes %d and %d are not powers of two in order, from %d up",
			ErrInvalid, o.SmallBlock, o.BlockSize, unitSize)
	}
	slab := int64(1) << (bits.Len64(uint64(o.Size/slabsWanted)) - 1)
	slab = min(max(slab, minSlab), maxSlab)
	for o.MaxMRs > 0 && len(o.Rails) > 0 && slab < o.Size && (o.Size+slab-1)/slab > int64(o.MaxMRs) {
		slab *= 2
	}
	o.BlockSize = min(o.BlockSize, slab)
	o.SmallBlock = min(o.SmallBlock, o.BlockSize)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return int(slab), nil
}

func powerOfTwo(n int64) bool { return n > 0 && n&(n-1) == 0 }
