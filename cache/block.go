package cache

// block is a run of one object's bytes in one region. Guarded by Cache.mu.
type block struct {
	region
	obj        *Object
	start, end int64 // in the object
	refs       int   // views, and readers that wait for done
	done       chan struct{}
	err        error // why the fetch failed; written before done is closed

	unread bool // brought by read-ahead, nobody read it
	ahead  bool // unread, and protected because a run is about to want it
	spent  bool // a sequential reader consumed it and no other wants it

	in         *blockList
	prev, next *block
	stamp      int64 // Cache.turnover when it was listed
}

func (b *block) len() int64 { return b.end - b.start }

// blockList is a list of evictable blocks, the last used in front.
type blockList struct {
	front, back *block
}

func (l *blockList) push(b *block) {
	b.in, b.prev, b.next = l, nil, l.front
	if l.front != nil {
		l.front.prev = b
	} else {
		l.back = b
	}
	l.front = b
}

func (b *block) unlink() {
	l := b.in
	if l == nil {
		return
	}
	if b.prev != nil {
		b.prev.next = b.next
	} else {
		l.front = b.next
	}
	if b.next != nil {
		b.next.prev = b.prev
	} else {
		l.back = b.prev
	}
	b.in, b.prev, b.next = nil, nil, nil
}

// ref keeps b in memory.
func (c *Cache) ref(b *block) {
	b.refs++
	b.unlink()
}

// unref ends a ref. The last one makes a resident block evictable and
// frees a draining one.
func (c *Cache) unref(b *block) {
	if b.refs--; b.refs > 0 {
		return
	}
	switch b.state {
	case stateResident:
		c.settle(b)
	case stateDraining:
		c.free(&b.region)
	default:
		return
	}
	c.pump()
}

// settle puts a resident block without references where it belongs.
func (c *Cache) settle(b *block) {
	switch {
	case c.closed || b.obj.dead() || b.slab.retired:
		c.drain(b)
		return
	case b.spent:
		c.spent.push(b)
	case b.ahead:
		c.unread.push(b)
	default:
		c.recent.push(b)
	}
	b.stamp = c.turnover
}

// protect marks a block of read-ahead, or takes the mark away.
func (c *Cache) protect(b *block, ahead bool) {
	if b.ahead != ahead {
		b.ahead = ahead
		if ahead {
			c.aheadBytes += b.size()
		} else {
			c.aheadBytes -= b.size()
		}
	}
}

// abandon takes the protection from read-ahead that nobody is about to want.
func (c *Cache) abandon(b *block) {
	c.protect(b, false)
	if b.in == &c.unread {
		b.unlink()
		c.spent.push(b)
		b.stamp = c.turnover
	}
}

// drain takes a block out of reach, and frees it unless it is referenced.
func (c *Cache) drain(b *block) {
	b.unlink()
	c.protect(b, false)
	if b.unread {
		c.wasted += b.len()
	}
	b.obj.remove(b)
	c.move(&b.region, stateDraining)
	if b.refs == 0 {
		c.free(&b.region)
	}
}
