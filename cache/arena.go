package cache

import (
	"errors"
	"fmt"
	"sync"

	"s3rdmafs/verbs"
)

const slabAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite

// arena is all memory of a cache. Allocation is guarded by Cache.mu.
type arena struct {
	mem   *verbs.Memory
	pd    verbs.PD
	slabs []*slab
}

// slab is a part of the arena that is registered as one MR.
type slab struct {
	index, base, size int // bytes within the arena

	// Guarded by Cache.mu.
	buddy       buddy
	owner       []*region // by unit; nil before first use
	used        int       // units allocated, quarantined ones included
	quarantined int       // units
	retired     bool      // its rkey is known to the peer of a failed transfer
	failedGen   uint64    // reclaim: the window at failedAt cannot be cleared
	failedAt    int

	// stale asks for a new registration. It is written under Cache.mu when
	// the last region was freed; register touches it, and regFailed, on behalf
	// of a region's owner, so the two never meet.
	stale bool

	regMu     sync.Mutex
	mr        verbs.MR
	regFailed bool
}

func newArena(size int64, slabSize int, pd verbs.PD) (*arena, error) {
	mem, err := verbs.NewMemory("s3rdmafs-cache", int(size))
	if err != nil {
		return nil, fmt.Errorf("cache memory: %w", err)
	}
	a := &arena{mem: mem, pd: pd}
	for base := 0; base < int(size); base += slabSize {
		a.slabs = append(a.slabs, &slab{index: len(a.slabs), base: base, size: min(slabSize, int(size)-base)})
	}
	return a, nil
}

func (s *slab) init() {
	if s.owner == nil {
		units := s.size / unitSize
		s.buddy = newBuddy(units)
		s.owner = make([]*region, units)
	}
}

// alloc finds units in slabs [lo, hi); retired ones serve last, so that they
// run empty.
func (a *arena) alloc(r *region, units, lo, hi int, descending bool) bool {
	for _, retired := range [...]bool{false, true} {
		for i := lo; i < hi; i++ {
			s := a.slabs[i]
			if descending {
				s = a.slabs[hi-1-(i-lo)]
			}
			if s.retired != retired {
				continue
			}
			s.init()
			if unit, ok := s.buddy.alloc(units); ok {
				r.slab, r.unit, r.units = s, unit, units
				for u := range units {
					s.owner[unit+u] = r
				}
				s.used += units
				return true
			}
		}
	}
	return false
}

func (a *arena) release(r *region) {
	s := r.slab
	clear(s.owner[r.unit : r.unit+r.units])
	s.buddy.release(r.unit, r.units)
	s.used -= r.units
	if s.used == 0 && (s.retired || s.regFailed) {
		s.retired, s.stale = false, true
	}
}

// bytes is the memory of a region.
func (a *arena) bytes(r *region) []byte {
	from := r.slab.base + r.off()
	to := from + int(r.size())
	return a.mem.Bytes()[from:to:to]
}

// register makes sure that s has an MR, and returns it: nil when there is no
// PD or the provider refused. The caller owns a region of s. delta is the change
// of pinned bytes. err is what went wrong just now; mr is good nevertheless.
func (a *arena) register(s *slab) (mr verbs.MR, delta int, err error) {
	if a.pd == nil {
		return nil, 0, nil
	}
	s.regMu.Lock()
	defer s.regMu.Unlock()
	if s.stale {
		s.stale, s.regFailed = false, false
		if s.mr != nil {
			if err := s.mr.Close(); err != nil {
				return s.mr, 0, fmt.Errorf("renew the rkey of a slab: %w", err)
			}
			s.mr = nil
			delta -= s.size
		}
	}
	if s.mr != nil || s.regFailed {
		return s.mr, delta, nil
	}
	mr, err = a.pd.RegMR(a.mem, s.base, s.size, slabAccess)
	if err != nil {
		s.regFailed = true
		return nil, delta, fmt.Errorf("register %d bytes: %w", s.size, err)
	}
	s.mr = mr
	return mr, delta + s.size, nil
}

// close deregisters and unmaps everything. No region may be in use.
func (a *arena) close() (unpinned int, err error) {
	var errs []error
	for _, s := range a.slabs {
		s.regMu.Lock()
		if s.mr != nil {
			if err := s.mr.Close(); err != nil {
				errs = append(errs, fmt.Errorf("deregister: %w", err))
			} else {
				s.mr = nil
				unpinned += s.size
			}
		}
		s.regMu.Unlock()
	}
	if len(errs) > 0 {
		return unpinned, errors.Join(errs...)
	}
	return unpinned, a.mem.Close()
}
