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

// take allocates n bytes in slabs [lo, hi), with eviction.
func (c *Cache) take(r *region, n int64, lo, hi int, descending bool, to state, need need) bool {
	if c.allocate(r, n, lo, hi, descending, to) {
		return true
	}
	units := int((n + unitSize - 1) / unitSize)
	return c.reclaim(units, lo, hi, need) && c.allocate(r, n, lo, hi, descending, to)
}

// reclaim evicts blocks so that the units can be allocated in slabs [lo, hi).
func (c *Cache) reclaim(units, lo, hi int, need need) bool {
	// Read-ahead that stayed unread while the whole budget was replaced
	// belongs to a reader that stands still.
	for b := c.unread.back; b != nil && c.turnover-b.stamp > c.opt.Size; b = c.unread.back {
		c.abandon(b)
	}
	span := 1 << orderOf(units)
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
		if c.clearWindow(b, span, lo, hi, warm, false) {
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
		if c.clearWindow(b, span, lo, hi, 0, true) {
			return true
		}
	}
	return false
}

// clearWindow evicts all there is in the aligned span of units around b, if
// all of it can be: not blocks used since less than warm bytes of turnover, and
// protected read-ahead only with unread set.
func (c *Cache) clearWindow(b *block, span, lo, hi int, warm int64, unread bool) bool {
	s := b.slab
	if s.index < lo || s.index >= hi {
		return false
	}
	from := b.unit &^ (span - 1)
	to := from + span
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

// everFits reports whether quarantine left room for n bytes in slabs [lo, hi).
func (c *Cache) everFits(n int64, lo, hi int) bool {
	if c.bytes[stateQuarantined] == 0 {
		return true
	}
	span := 1 << orderOf(int((n+unitSize-1)/unitSize))
	for _, s := range c.arena.slabs[lo:hi] {
		units := s.size / unitSize
		if s.quarantined == 0 && span <= units {
			return true
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
