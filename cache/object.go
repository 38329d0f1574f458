package cache

import "slices"

// Key names one version of an object. Size is its length in bytes, fixed by the
// ETag.
type Key struct {
	Bucket, Key string
	ETag        string
	Size        int64
}

// name is what an Invalidate refers to: all versions.
type name struct{ bucket, key string }

func (k Key) name() name { return name{k.Bucket, k.Key} }

// Object is one version of an object with the blocks that are in memory. It is
// shared by all who opened the same Key; each Open wants one Close. Blocks stay
// after the last Close until they are evicted or invalidated.
type Object struct {
	key   Key
	cache *Cache

	// Guarded by Cache.mu.
	handles  int
	detached bool  // not found by Open any more
	err      error // the version is gone: what a miss answers
	slots    map[int64]*slot
	streams  map[*Stream]struct{}
}

// slot is a part of an object as long as the largest block.
type slot struct {
	blocks []*block // by unit of SmallBlock bytes; a block appears at each of its units
	used   int      // units that are not nil
}

// Key tells which version o is.
func (o *Object) Key() Key { return o.key }

// Close ends one Open. Streams of the object must not be used after its last
// Close.
func (o *Object) Close() {
	c := o.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.handles == 0 {
		panic("cache: object closed more often than opened")
	}
	if o.handles--; o.handles > 0 {
		return
	}
	for s := range o.streams {
		s.end()
	}
	if o.detached {
		c.drop(o)
	} else {
		c.forgetIdle(o)
	}
}

// dead reports whether nobody can ever read from o again.
func (o *Object) dead() bool { return o.detached && o.handles == 0 }

// at is the block that holds the byte at off, or nil.
func (o *Object) at(off int64) *block {
	c := o.cache
	sl := o.slots[off>>c.slotShift]
	if sl == nil {
		return nil
	}
	return sl.blocks[(off&(c.opt.BlockSize-1))>>c.unitShift]
}

// gap is the run of absent bytes that begins at the unit of off, which is
// absent, and goes to stop at most, within one slot.
func (o *Object) gap(off, stop int64) (from, to int64) {
	c := o.cache
	small, large := c.opt.SmallBlock, c.opt.BlockSize
	from = off &^ (small - 1)
	stop = min((stop+small-1)&^(small-1), from&^(large-1)+large, o.key.Size)
	to = from + small
	for to < stop && o.at(to) == nil {
		to += small
	}
	return from, min(to, o.key.Size)
}

func (o *Object) put(b *block) {
	c := o.cache
	i := b.start >> c.slotShift
	sl := o.slots[i]
	if sl == nil {
		base := i << c.slotShift
		n := min(c.opt.BlockSize, o.key.Size-base)
		sl = &slot{blocks: make([]*block, (n+c.opt.SmallBlock-1)>>c.unitShift)}
		o.slots[i] = sl
	}
	from, to := c.unitsOf(b)
	for u := from; u < to; u++ {
		if sl.blocks[u] != nil {
			panic("cache: blocks overlap")
		}
		sl.blocks[u] = b
	}
	sl.used += int(to - from)
	c.blocks++
}

func (o *Object) remove(b *block) {
	c := o.cache
	i := b.start >> c.slotShift
	sl := o.slots[i]
	from, to := c.unitsOf(b)
	clear(sl.blocks[from:to])
	sl.used -= int(to - from)
	if sl.used == 0 {
		delete(o.slots, i)
	}
	c.blocks--
	c.forgetIdle(o)
}

// unitsOf is the range of units [from, to) of b within its slot.
func (c *Cache) unitsOf(b *block) (from, to int64) {
	from = (b.start & (c.opt.BlockSize - 1)) >> c.unitShift
	return from, from + (b.len()+c.opt.SmallBlock-1)>>c.unitShift
}

// forgetIdle ends the memory of an object that is neither open nor cached.
func (c *Cache) forgetIdle(o *Object) {
	if o.handles == 0 && len(o.slots) == 0 && !o.detached {
		c.detach(o)
	}
}

// detach hides o from Open.
func (c *Cache) detach(o *Object) {
	if o.detached {
		return
	}
	o.detached = true
	n := o.key.name()
	rest := slices.DeleteFunc(c.names[n], func(x *Object) bool { return x == o })
	if len(rest) == 0 {
		delete(c.names, n)
	} else {
		c.names[n] = rest
	}
	c.objects--
}

// drop drains all blocks of a dead object; those being filled follow when
// they are done.
func (c *Cache) drop(o *Object) {
	for _, sl := range o.slots {
		for _, b := range sl.blocks {
			if b != nil && b.state == stateResident {
				c.drain(b)
			}
		}
	}
	c.pump()
}
