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
	rails []Rail
	slabs []*slab
	turn  int // the rail whose turn it is
}

// slab is a part of the arena that is registered as one MR.
type slab struct {
	index, base, size int // bytes within the arena
	rail              int

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
	bound     bool // to the NUMA node of its rail
}

func newArena(size int64, slabSize int, rails []Rail) (*arena, error) {
	mem, err := verbs.NewMemory("s3rdmafs-cache", int(size))
	if err != nil {
		return nil, fmt.Errorf("cache memory: %w", err)
	}
	a := &arena{mem: mem, rails: rails}
	for base := 0; base < int(size); base += slabSize {
		s := &slab{index: len(a.slabs), base: base, size: min(slabSize, int(size)-base)}
		s.rail = s.index % max(1, len(rails))
		a.slabs = append(a.slabs, s)
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

// alloc finds units in slabs [lo, hi), in the slabs of the rails in turn; retired
// slabs serve last, so that they run empty.
func (a *arena) alloc(r *region, units, lo, hi int, descending bool) bool {
	order := a.order()
	for _, retired := range [...]bool{false, true} {
		for _, rail := range order {
			if a.allocOn(rail, retired, r, units, lo, hi, descending) {
				a.turn = (rail + 1) % len(order)
				return true
			}
		}
	}
	return false
}

// order is the rails that are usable, from the one whose turn it is, and then the
// others.
func (a *arena) order() []int {
	n := max(1, len(a.rails))
	if n == 1 {
		return []int{0}
	}
	var order, idle []int
	for i := range n {
		rail := (a.turn + i) % n
		if usable := a.rails[rail].Usable; usable != nil && !usable() {
			idle = append(idle, rail)
			continue
		}
		order = append(order, rail)
	}
	return append(order, idle...)
}

func (a *arena) allocOn(rail int, retired bool, r *region, units, lo, hi int, descending bool) bool {
	for i := lo; i < hi; i++ {
		s := a.slabs[i]
		if descending {
			s = a.slabs[hi-1-(i-lo)]
		}
		if s.rail != rail || s.retired != retired {
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
// rail or the provider refused. The caller owns a region of s. delta is the change
// of pinned bytes. err is what went wrong just now; mr is good nevertheless.
func (a *arena) register(s *slab) (mr verbs.MR, delta int, err error) {
	if len(a.rails) == 0 {
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
	rail := a.rails[s.rail]
	if rail.NUMANode >= 0 && !s.bound {
		// Pages of another node serve as well, only slower.
		_ = a.mem.Bind(s.base, s.size, rail.NUMANode)
		s.bound = true
	}
	mr, err = rail.PD.RegMR(a.mem, s.base, s.size, slabAccess)
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
