package cache

import (
	"container/list"
	"fmt"
	"testing"
)

func checkInvariants(t testing.TB, c *Cache) {
	t.Helper()
	if err := c.invariants(); err != nil {
		t.Fatal(err)
	}
}

// invariants checks what must hold whenever c.mu is free.
func (c *Cache) invariants() error {
	c.mu.Lock()
	defer c.mu.Unlock()

	var bytes [stateCount]int64
	var ahead, staged, lost int64
	fetching, blocks := 0, 0
	objects := map[*Object]map[*block]bool{}
	for _, s := range c.arena.slabs {
		if s.owner == nil {
			bytes[stateFree] += int64(s.size)
			continue
		}
		free := make([]bool, len(s.owner))
		for o := range s.buddy.free {
			n := 0
			for i := 0; i<<o < len(s.owner); i++ {
				if !s.buddy.isFree(o, i) {
					continue
				}
				n++
				if o+1 < len(s.buddy.free) && s.buddy.isFree(o, i^1) {
					return fmt.Errorf("slab %d: free neighbours of order %d at %d", s.index, o, i)
				}
				for u := i << o; u < (i+1)<<o; u++ {
					if free[u] {
						return fmt.Errorf("slab %d: unit %d is free twice", s.index, u)
					}
					free[u] = true
				}
			}
			if n != s.buddy.count[o] || (n > 0) != (s.buddy.has&(1<<o) != 0) {
				return fmt.Errorf("slab %d: %d free runs of order %d, counted %d", s.index, n, o, s.buddy.count[o])
			}
		}
		used, quarantined := 0, 0
		for u := 0; u < len(s.owner); {
			r := s.owner[u]
			if r != nil && c.split && r.state != stateQuarantined && (r.block == nil) != (s.use == useStaging) {
				return fmt.Errorf("slab %d is for use %d and has a region in state %v", s.index, s.use, r.state)
			}
			if (r == nil) != free[u] {
				return fmt.Errorf("slab %d: unit %d: free %v, owned %v", s.index, u, free[u], r != nil)
			}
			if r == nil {
				bytes[stateFree] += unitSize
				u++
				continue
			}
			if r.slab != s || r.unit != u {
				return fmt.Errorf("slab %d: unit %d is owned by region at %d", s.index, u, r.unit)
			}
			for i := range r.units {
				if s.owner[u+i] != r || free[u+i] {
					return fmt.Errorf("slab %d: region at %d lost unit %d", s.index, u, u+i)
				}
			}
			bytes[r.state] += r.size()
			used += r.units
			u += r.units
			b := r.block
			switch {
			case r.state == stateFree:
				return fmt.Errorf("slab %d: free region at %d has an owner", s.index, r.unit)
			case r.state == stateQuarantined:
				quarantined += r.units
				if s.use == useRead {
					lost += r.size()
				}
				continue
			case (r.state == stateStaging) != (b == nil):
				return fmt.Errorf("slab %d: region at %d is %v, block %v", s.index, r.unit, r.state, b != nil)
			case r.state == stateStaging:
				if s.index < c.staging {
					return fmt.Errorf("staging in slab %d", s.index)
				}
				continue
			}
			if b.refs < 0 || b.state == stateDraining && b.refs == 0 {
				return fmt.Errorf("%v block has %d references", b.state, b.refs)
			}
			if b.len() <= 0 || b.len() > r.size() || b.len() <= r.size()-unitSize {
				return fmt.Errorf("block of %d bytes in a region of %d", b.len(), r.size())
			}
			if b.state == stateDraining {
				continue
			}
			if s.retired && b.state == stateResident && b.refs == 0 {
				return fmt.Errorf("slab %d is retired and keeps a block", s.index)
			}
			if b.state == stateFilling {
				fetching++
			}
			if b.ahead {
				ahead += r.size()
				if !b.unread {
					return fmt.Errorf("protected block was read")
				}
			}
			if (b.in != nil) != (b.state == stateResident && b.refs == 0) {
				return fmt.Errorf("%v block with %d references: listed %v", b.state, b.refs, b.in != nil)
			}
			if b.in == &c.unread != (b.in != nil && b.ahead && !b.spent) {
				return fmt.Errorf("block is in the wrong list")
			}
			for off := b.start; off < b.end; off += c.opt.SmallBlock {
				if b.obj.at(off) != b {
					return fmt.Errorf("block [%d,%d) is not found at %d", b.start, b.end, off)
				}
			}
			if b.start&(c.opt.SmallBlock-1) != 0 || b.end&(c.opt.SmallBlock-1) != 0 && b.end != b.obj.key.Size {
				return fmt.Errorf("block [%d,%d) of an object of %d is not aligned", b.start, b.end, b.obj.key.Size)
			}
			if b.start/c.opt.BlockSize != (b.end-1)/c.opt.BlockSize {
				return fmt.Errorf("block [%d,%d) crosses a slot", b.start, b.end)
			}
			if b.obj.dead() && b.state == stateResident && b.refs == 0 {
				return fmt.Errorf("block of a dead object is kept")
			}
			blocks++
			if objects[b.obj] == nil {
				objects[b.obj] = map[*block]bool{}
			}
			objects[b.obj][b] = true
		}
		if used != s.used || quarantined != s.quarantined {
			return fmt.Errorf("slab %d: %d units used, counted %d; %d quarantined, counted %d", s.index, used, s.used, quarantined, s.quarantined)
		}
		if s.retired && (used == 0 || quarantined > 0 || s.use != useRead) {
			return fmt.Errorf("slab %d is retired with %d units used, %d in quarantine, use %d", s.index, used, quarantined, s.use)
		}
		if used > 0 && s.use == useStaging {
			staged += int64(s.size)
		}
	}
	if staged != c.arena.staged || lost != c.lost {
		return fmt.Errorf("%d bytes for staging, counted %d; %d lost, counted %d", staged, c.arena.staged, lost, c.lost)
	}
	if bytes != c.bytes {
		return fmt.Errorf("bytes by state %v, counted %v", bytes, c.bytes)
	}
	var sum int64
	for _, n := range bytes {
		sum += n
	}
	if sum != c.opt.Size {
		return fmt.Errorf("%d bytes in all, budget %d", sum, c.opt.Size)
	}
	if c.pinned < 0 || c.pinned > c.opt.Size {
		return fmt.Errorf("%d bytes pinned, budget %d", c.pinned, c.opt.Size)
	}
	if ahead != c.aheadBytes || fetching != c.fetching || blocks != c.blocks {
		return fmt.Errorf("ahead %d/%d, fetching %d/%d, blocks %d/%d", ahead, c.aheadBytes, fetching, c.fetching, blocks, c.blocks)
	}

	for o, found := range objects {
		for i, sl := range o.slots {
			used := 0
			for u, b := range sl.blocks {
				if b == nil {
					continue
				}
				used++
				if !found[b] || b.start > i<<c.slotShift+int64(u)<<c.unitShift || b.end <= i<<c.slotShift+int64(u)<<c.unitShift {
					return fmt.Errorf("slot %d unit %d holds a foreign block", i, u)
				}
			}
			if used != sl.used || used == 0 {
				return fmt.Errorf("slot %d has %d units, counted %d", i, used, sl.used)
			}
		}
	}
	named, runs := 0, 0
	for n, versions := range c.names {
		if len(versions) == 0 {
			return fmt.Errorf("empty entry for %v", n)
		}
		for _, o := range versions {
			named++
			if o.detached || o.key.name() != n {
				return fmt.Errorf("object %v is out of place", o.key)
			}
			if o.handles == 0 && len(o.slots) == 0 {
				return fmt.Errorf("idle object %v is kept", o.key)
			}
			for s := range o.streams {
				for i := range s.runs {
					if s.runs[i].window > 0 {
						runs++
					}
				}
			}
		}
	}
	if named != c.objects || runs > c.runs {
		return fmt.Errorf("objects %d/%d, runs %d/%d", named, c.objects, runs, c.runs)
	}
	for _, l := range [...]*blockList{&c.spent, &c.recent, &c.unread} {
		var prev *block
		for b := l.front; b != nil; b = b.next {
			if b.in != l || b.prev != prev {
				return fmt.Errorf("broken list")
			}
			prev = b
		}
		if l.back != prev {
			return fmt.Errorf("broken list end")
		}
	}
	// Nobody waits who could be served.
	for _, q := range [...]*list.List{&c.writers, &c.readers} {
		if e := q.Front(); e != nil && e.Value.(*waiter).serve() {
			return fmt.Errorf("a waiter was forgotten")
		}
	}
	return nil
}
