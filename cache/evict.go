package cache

const (
	// Cold blocks searched for a window of the wanted size, before a smaller
	// one will do.
	reclaimTries = 64
	// A block that was read at random gives way to a consumed one, unless
	// it is so many times older.
	coldFactor = 4
)

// need says what an allocation may evict.
type need uint8

const (
	needCold need = iota // what no reader is about to want
	needAny              // unread read-ahead too
)

func unitsOf(n int64) int { return int((n + unitSize - 1) / unitSize) }

// take allocates what is wanted, with eviction.
func (c *Cache) take(r *region, w want, to state, need need) bool {
	w.restless, w.turnover = need == needAny, c.turnover
	return c.allocate(r, w, to) || c.reclaim(w, need) && c.allocate(r, w, to)
}

// reclaim evicts blocks so that what is wanted can be allocated.
func (c *Cache) reclaim(w want, need need) bool {
	// Read-ahead that stayed unread while the whole budget was replaced
	// belongs to a reader that stands still.
	for b := c.unread.back; b != nil && c.turnover-b.stamp > c.opt.Size; b = c.unread.back {
		c.abandon(b)
	}
	tries := reclaimTries
	c.reclaimGen++
	spent, recent := c.spent.back, c.recent.back
	for spent != nil || recent != nil {
		var b *block
		if spent == nil || recent != nil && c.turnover-recent.stamp > coldFactor*(c.turnover-spent.stamp) {
			b, recent = recent, recent.prev
		} else {
			b, spent = spent, spent.prev
		}
		// Neighbours that are much warmer than b shall not go with it.
		var warm int64
		if need == needCold {
			warm = (c.turnover - b.stamp) / coldFactor
		}
		if c.clearWindow(b, w, warm, false) {
			return true
		}
		if tries--; tries == 0 && need == needCold {
			return false
		}
	}
	if need == needCold {
		return false
	}
	c.reclaimGen++
	for b := c.unread.front; b != nil; b = b.next {
		if c.clearWindow(b, w, 0, true) {
			return true
		}
	}
	return false
}

// clearWindow evicts all there is in the aligned span of units around b, if
// all of it can be: not blocks used since less than warm bytes of turnover, and
// protected read-ahead only with unread set. For another use it must be the slab.
func (c *Cache) clearWindow(b *block, w want, warm int64, unread bool) bool {
	s := b.slab
	if s.index < w.lo || s.index >= w.hi || c.arena.shut(s) {
		return false
	}
	span := 1 << orderOf(w.units)
	from := b.unit &^ (span - 1)
	to := from + span
	if s.use != w.use && to <= len(s.owner) {
		from, to = 0, len(s.owner)
	}
	if to > len(s.owner) || s.failedGen == c.reclaimGen && s.failedAt == from {
		return false
	}
	for u := from; u < to; {
		r := s.owner[u]
		if r == nil {
			u++
			continue
		}
		if r.state != stateResident || r.block.refs > 0 || r.block.in == &c.unread && !unread {
			s.failedGen, s.failedAt = c.reclaimGen, from
			return false
		}
		if r.block.in == &c.recent && c.turnover-r.block.stamp < warm {
			return false
		}
		u = r.unit + r.units
	}
	for u := from; u < to; u++ {
		if r := s.owner[u]; r != nil {
			c.evictions++
			c.drain(r.block)
		}
	}
	return true
}

// everFits reports whether quarantine left room for what is wanted.
func (c *Cache) everFits(w want) bool {
	if c.bytes[stateQuarantined] == 0 {
		return true
	}
	span := 1 << orderOf(w.units)
	for _, s := range c.arena.slabs[w.lo:w.hi] {
		units := s.size / unitSize
		if s.quarantined == 0 && span <= units {
			return true
		}
		if s.use != w.use {
			continue // for good
		}
		for from := 0; from+span <= units; from += span {
			if !s.quarantinedIn(from, from+span) {
				return true
			}
		}
	}
	return false
}

func (s *slab) quarantinedIn(from, to int) bool {
	for _, r := range s.owner[from:to] {
		if r != nil && r.state == stateQuarantined {
			return true
		}
	}
	return false
}
