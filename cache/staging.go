package cache

import (
	"context"
	"fmt"

	"s3rdmafs/verbs"
)

// Region is registered memory for bytes on their way out. Its content is
// undefined at first: whatever was in the cache before.
type Region struct {
	region
	cache    *Cache
	seg      verbs.Segment
	released bool // guarded by Cache.mu
}

// MaxStaging is the largest n for Staging, in bytes.
func (c *Cache) MaxStaging() int { return c.arena.slabs[0].size }

// Staging gives n bytes for writing, waiting until there is room or ctx ends.
// At least half of the budget serves writers when they need it, but what they
// hold can also be too scattered for a large n: a caller that holds regions
// must be able to go on without another one (TryStaging, a ctx with a
// deadline).
func (c *Cache) Staging(ctx context.Context, n int) (*Region, error) {
	if n <= 0 || n > c.MaxStaging() {
		return nil, fmt.Errorf("%w: staging of %d bytes, largest is %d", ErrInvalid, n, c.MaxStaging())
	}
	r := &Region{cache: c}
	c.mu.Lock()
	var err error
	serve := func() bool {
		var ok bool
		ok, err = c.stage(r, n)
		return ok || err != nil
	}
	if c.writers.Len() > 0 || !serve() {
		if werr := c.wait(ctx, &c.writers, serve); werr != nil {
			err = werr
		}
	}
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	r.seg = c.segment(&r.region, int64(n))
	return r, nil
}

// TryStaging is Staging without waiting: nil when there is no room now, when
// others wait, or when n is out of range.
func (c *Cache) TryStaging(n int) *Region {
	if n <= 0 || n > c.MaxStaging() {
		return nil
	}
	r := &Region{cache: c}
	c.mu.Lock()
	ok := false
	if c.writers.Len() == 0 {
		ok, _ = c.stage(r, n)
	}
	c.mu.Unlock()
	if !ok {
		return nil
	}
	r.seg = c.segment(&r.region, int64(n))
	return r
}

// stage is one attempt: the step from free to staging.
func (c *Cache) stage(r *Region, n int) (bool, error) {
	if c.closed {
		return false, ErrClosed
	}
	w := want{units: unitsOf(int64(n)), lo: c.staging, hi: len(c.arena.slabs), descending: true}
	if c.split {
		w.use = useStaging
	}
	if c.take(&r.region, w, stateStaging, needAny) {
		return true, nil
	}
	if !c.everFits(w) {
		return false, ErrExhausted
	}
	return false, nil
}

// Segment is the memory, registered when the cache is: as the source of transfers,
// peers have no right to it.
func (r *Region) Segment() verbs.Segment { return r.seg }

// Bytes is the memory.
func (r *Region) Bytes() []byte { return r.seg.Buf }

// Release gives the memory back. No transfer may be using it: after one that
// failed with verbs.ErrUnsafe call Quarantine instead. Further calls do nothing.
func (r *Region) Release() {
	c := r.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.released {
		return
	}
	r.released = true
	c.free(&r.region)
	c.pump()
}

// Quarantine gives the memory up for ever, because a peer may still use it;
// err says why. After Release or Quarantine it does nothing.
func (r *Region) Quarantine(err error) {
	c := r.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.released {
		return
	}
	r.released = true
	c.quarantine(&r.region, "staging", err)
	c.pump() // what can never be met must be told
}
