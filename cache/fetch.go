package cache

import (
	"context"
	"errors"
	"io"
	"sync/atomic"

	"s3rdmafs/store"
	"s3rdmafs/verbs"
)

// Source fetches object bytes; *store.Store is one.
type Source interface {
	// Read fills r.Dst.Buf with the bytes of version r.ETag at r.Off, all of
	// them or an error. An error that wraps store.ErrChanged says that
	// the version is gone. When Read returned, no transfer writes into r.Dst any
	// more, unless the error wraps verbs.ErrUnsafe. r.RDMAFailed is called for each
	// transfer into r.Dst that went wrong.
	Read(ctx context.Context, r store.ReadRequest) (int, error)
}

// demand gives the block at off with a reference. Absent, its fetch is
// started for the bytes up to stop, after a wait for memory if need be. c.mu is
// held on entry and return.
func (c *Cache) demand(ctx context.Context, o *Object, off, stop int64) (*block, error) {
	var b *block
	var err error
	serve := func() bool {
		b, err = c.provide(o, off, stop)
		return b != nil || err != nil
	}
	if c.readers.Len() == 0 && serve() {
		return b, err
	}
	if err := c.wait(ctx, &c.readers, serve); err != nil {
		return nil, err
	}
	return b, err
}

// provide is one attempt of demand; nothing means that there is no room.
func (c *Cache) provide(o *Object, off, stop int64) (*block, error) {
	if c.closed {
		return nil, ErrClosed
	}
	if b := o.at(off); b != nil {
		c.ref(b)
		return b, nil
	}
	if o.err != nil {
		return nil, o.err
	}
	from, to := o.gap(off, stop)
	b := c.install(o, from, to, needAny)
	if b == nil {
		least := want{units: unitsOf(min(c.opt.SmallBlock, to-from)), hi: len(c.arena.slabs)}
		if !c.everFits(least) {
			return nil, ErrExhausted
		}
		return nil, nil
	}
	c.ref(b)
	return b, nil
}

// prefetch starts a fetch without waiting for memory. Nil means there is none
// to spare.
func (c *Cache) prefetch(o *Object, from, to int64) *block {
	if c.aheadBytes+to-from > c.readable()/2 {
		return nil
	}
	b := c.install(o, from, to, needCold)
	if b != nil {
		b.unread = true
		c.protect(b, true)
		c.readAhead += b.len()
	}
	return b
}

// install makes a block of the bytes from on, up to to or fewer when room is
// scarce, and starts to fill it: the step from free to filling.
func (c *Cache) install(o *Object, from, to int64, need need) *block {
	hi := len(c.arena.slabs)
	if c.writers.Len() > 0 {
		hi = c.staging
	}
	b := &block{obj: o, start: from, done: make(chan struct{})}
	b.block = b
	for level := needCold; level <= need; level++ {
		for units := (to - from + c.opt.SmallBlock - 1) >> c.unitShift; units > 0; units /= 2 {
			b.end = min(from+units<<c.unitShift, to)
			if c.take(&b.region, want{units: unitsOf(b.len()), hi: hi}, stateFilling, level) {
				o.put(b)
				c.turnover += b.size()
				c.fetching++
				go c.fetch(b)
				return b
			}
		}
	}
	return nil
}

// fetch fills a block. It runs until the Source is done with the memory,
// whoever still wants the bytes.
func (c *Cache) fetch(b *block) {
	k := b.obj.key
	seg := c.segment(&b.region, b.len())
	var told atomic.Bool
	n, err := c.opt.Source.Read(c.ctx, store.ReadRequest{
		Bucket: k.Bucket, Key: k.Key, ETag: k.ETag, Off: b.start, Dst: seg, ObjectSize: k.Size,
		RDMAFailed: func(error) { told.Store(true) },
	})
	if err == nil && int64(n) != b.len() {
		err = io.ErrUnexpectedEOF
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.filled(b, err, told.Load())
}

// filled is the end of a fetch: filling to resident, draining or quarantined. told
// says that the peer of a failed transfer knows the rkey.
func (c *Cache) filled(b *block, err error, told bool) {
	o := b.obj
	c.fetching--
	b.err = err
	if told && !errors.Is(err, verbs.ErrUnsafe) {
		c.retire(b.slab)
	}
	switch {
	case err == nil:
		c.fetched += b.len()
		c.move(&b.region, stateResident)
		if b.refs == 0 {
			c.settle(b)
		}
	case errors.Is(err, verbs.ErrUnsafe):
		c.fetchErrors++
		c.protect(b, false)
		o.remove(b)
		c.quarantine(&b.region, "read of "+o.key.Bucket+"/"+o.key.Key, err)
	default:
		c.fetchErrors++
		b.unread = false
		c.drain(b)
	}
	if errors.Is(err, store.ErrChanged) && o.err == nil {
		c.changed++
		o.err = err
		c.detach(o)
		if o.dead() {
			c.drop(o)
		}
	}
	close(b.done)
	c.pump()
	if c.fetching == 0 && c.idle != nil {
		close(c.idle)
		c.idle = nil
	}
}

// segment is n bytes of a region as a transfer wants it, registered if that is
// possible. Must be called without c.mu.
func (c *Cache) segment(r *region, n int64) verbs.Segment {
	mr, delta, err := c.arena.register(r.slab)
	if delta != 0 || err != nil {
		c.mu.Lock()
		c.pinned += int64(delta)
		first := err != nil && c.registrationErrors == 0
		if err != nil {
			c.registrationErrors++
		}
		c.mu.Unlock()
		if first {
			c.log.Warn("part of the cache is not registered for RDMA", "err", err)
		}
	}
	return verbs.Segment{Buf: c.arena.bytes(r)[:n:n], MR: mr, Off: r.off()}
}
