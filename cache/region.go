package cache

import "fmt"

// state of a region. See the package comment.
type state uint8

const (
	stateFree state = iota
	stateFilling
	stateResident
	stateDraining
	stateStaging
	stateQuarantined
	stateCount
)

func (s state) String() string {
	return [...]string{"free", "filling", "resident", "draining", "staging", "quarantined"}[s]
}

var transitions = [stateCount][stateCount]bool{
	stateFree:     {stateFilling: true, stateStaging: true},
	stateFilling:  {stateResident: true, stateDraining: true, stateQuarantined: true},
	stateResident: {stateDraining: true},
	stateDraining: {stateFree: true},
	stateStaging:  {stateFree: true, stateQuarantined: true},
}

// region is a run of units of one slab. All but slab, unit and units is
// guarded by Cache.mu.
type region struct {
	slab        *slab
	unit, units int
	state       state
	block       *block // nil for staging
}

func (r *region) size() int64 { return int64(r.units) * unitSize }

// off is the region's offset in its slab.
func (r *region) off() int { return r.unit * unitSize }

// move changes a region's state and the account of it. An illegal step is a
// bug that could hand out memory a peer may write to: it panics.
func (c *Cache) move(r *region, to state) {
	if !transitions[r.state][to] {
		panic(fmt.Sprintf("cache: region goes from %v to %v", r.state, to))
	}
	c.bytes[r.state] -= r.size()
	c.bytes[to] += r.size()
	r.state = to
}

// allocate takes what is wanted into state to.
func (c *Cache) allocate(r *region, w want, to state) bool {
	if !c.arena.alloc(r, w) {
		return false
	}
	r.state = stateFree
	c.move(r, to)
	return true
}

// free gives a region's memory back.
func (c *Cache) free(r *region) {
	c.move(r, stateFree)
	c.arena.release(r)
	if r.slab.used == 0 {
		r.slab.emptied = c.turnover
	}
}

// retire takes the rkey of a slab out of use, which the peer of a failed transfer
// knows: no more regions, what is cached goes, and the last to leave makes it
// register anew. A slab with memory in quarantine must keep its MR.
func (c *Cache) retire(s *slab) {
	if s.retired || s.quarantined > 0 {
		return
	}
	s.retired = true
	for _, r := range s.owner {
		if r != nil && r.state == stateResident && r.block.refs == 0 {
			c.drain(r.block)
		}
	}
}

// quarantine takes a region out of use for ever: a peer may still write to it.
func (c *Cache) quarantine(r *region, what string, err error) {
	c.move(r, stateQuarantined)
	r.slab.quarantined += r.units
	r.slab.retired = false
	if r.slab.use == useRead {
		c.lost += r.size()
	}
	c.quarantines++
	c.log.Error("memory quarantined: a peer may still write to it",
		"what", what, "bytes", r.size(), "total", c.bytes[stateQuarantined], "err", err)
}
