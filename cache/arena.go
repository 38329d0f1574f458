package cache

import (
	"errors"
	"fmt"
	"sync"

	"s3rdmafs/verbs"
)

// use says what the regions of a slab are for, and so what its MR allows a peer.
type use uint8

const (
	useRead    use = iota // peers write into them
	useStaging            // peers get their bytes from us, and have no rights
)

func (u use) access() verbs.Access {
	if u == useStaging {
		return verbs.AccessLocalWrite
	}
	return verbs.AccessLocalWrite | verbs.AccessRemoteWrite
}

// arena is all memory of a cache. Allocation is guarded by Cache.mu.
type arena struct {
	mem    *verbs.Memory
	rails  []Rail
	slabs  []*slab
	turn   int   // the rail whose turn it is
	staged int64 // bytes of the slabs in use for staging
}

// want is what an allocation asks for.
type want struct {
	units, lo, hi int // slabs [lo, hi)
	descending    bool
	use           use
	// restless takes slabs of the other use as soon as they are empty. Otherwise
	// readers leave staging its slabs for some time, because a change of use costs
	// a registration.
	restless bool
	turnover int64 // Cache.turnover
}

// restFactor is how many times its own size readers must have brought in since a
// staging slab was emptied before they take it.
const restFactor = 4

// slab is a part of the arena that is registered as one MR.
type slab struct {
	index, base, size int // bytes within the arena
	rail              int

	// Guarded by Cache.mu.
	buddy       buddy
	owner       []*region // by unit; nil before first use
	used        int       // units allocated, quarantined ones included
	quarantined int       // units
	use         use       // does not change while units are allocated
	emptied     int64     // Cache.turnover when the last unit was freed
	retired     bool      // its rkey is known to the peer of a failed transfer
	failedGen   uint64    // reclaim: the window at failedAt cannot be cleared
	failedAt    int

	// stale asks for a new registration. It is written under Cache.mu while no
	// region is allocated; register touches it, and regFailed, on behalf
	// of a region's owner, so the two never meet.
	stale bool

	regMu     sync.Mutex
	mr        verbs.MR
	access    verbs.Access // of mr
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

// alloc finds units in the slabs of the rails in turn: first in one that has the
// use already, then in an empty one.
func (a *arena) alloc(r *region, w want) bool {
	order := a.order()
	for _, rail := range order {
		if a.allocOn(rail, false, r, w) || a.allocOn(rail, true, r, w) {
			a.turn = (rail + 1) % len(order)
			return true
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

// allocOn is alloc on one rail, with a change of use or without.
func (a *arena) allocOn(rail int, change bool, r *region, w want) bool {
	for i := w.lo; i < w.hi; i++ {
		s := a.slabs[i]
		if w.descending {
			s = a.slabs[w.hi-1-(i-w.lo)]
		}
		if s.rail != rail || a.shut(s) || (s.use != w.use) != change {
			continue
		}
		if change {
			resting := w.use == useRead && !w.restless && w.turnover-s.emptied < restFactor*int64(s.size)
			if s.used > 0 || resting || w.units > s.size/unitSize {
				continue
			}
			s.use, s.stale = w.use, true
		}
		s.init()
		if unit, ok := s.buddy.alloc(w.units); ok {
			if s.used == 0 && s.use == useStaging {
				a.staged += int64(s.size)
			}
			r.slab, r.unit, r.units = s, unit, w.units
			for u := range w.units {
				s.owner[unit+u] = r
			}
			s.used += w.units
			return true
		}
	}
	return false
}

// shut reports whether s takes no more regions until it has a new rkey. The only
// slab of a cache cannot be spared: staging in it may be held by a reader.
func (a *arena) shut(s *slab) bool { return s.retired && len(a.slabs) > 1 }

func (a *arena) release(r *region) {
	s := r.slab
	clear(s.owner[r.unit : r.unit+r.units])
	s.buddy.release(r.unit, r.units)
	s.used -= r.units
	if s.used > 0 {
		return
	}
	if s.use == useStaging {
		a.staged -= int64(s.size)
	}
	if s.retired || s.regFailed {
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
// rail or the provider refused. Its rights are those of the slab's use, or more.
// The caller owns a region of s. delta is the change of pinned bytes. err is what
// went wrong just now; mr is good nevertheless.
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
				err = fmt.Errorf("renew the rkey of a slab: %w", err)
				if need := s.use.access(); s.access&need != need {
					return nil, 0, err
				}
				return s.mr, 0, err
			}
			s.mr = nil
			delta -= s.size
		}
	}
	if need := s.use.access(); s.mr != nil && s.access&need != need {
		return nil, delta, nil
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
	mr, err = rail.PD.RegMR(a.mem, s.base, s.size, s.use.access())
	if err != nil {
		s.regFailed = true
		return nil, delta, fmt.Errorf("register %d bytes: %w", s.size, err)
	}
	s.mr, s.access = mr, s.use.access()
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
