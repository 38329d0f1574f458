package cache

import (
	"context"
	"fmt"
	"io"
)

// maxRuns is how many interleaved sequential runs a stream follows.
const maxRuns = 8

// Stream reads an object and remembers how: one per open file handle. Safe
// for concurrent use.
type Stream struct {
	obj *Object

	// Guarded by Cache.mu.
	runs   [maxRuns]run
	clock  uint64
	closed bool
}

// run is one place where a stream reads on. window is 0 until a second read
// continued the first.
type run struct {
	pos      int64  // end of what was read
	window   int64  // bytes to have ahead of pos
	grow     int64  // pos at which the window doubles
	frontier int64  // read-ahead was started up to here
	hold     int64  // no read-ahead before pos is here: there was no room
	used     uint64 // Stream.clock of the last read; 0: not in use
	head     bool   // began at offset 0
}

// NewStream starts with no history. Close it with the handle.
func (o *Object) NewStream() *Stream {
	s := &Stream{obj: o}
	o.cache.mu.Lock()
	defer o.cache.mu.Unlock()
	o.streams[s] = struct{}{}
	return s
}

// Close ends the stream's claim on read-ahead. Views stay valid. Closing twice
// does nothing.
func (s *Stream) Close() {
	c := s.obj.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	s.end()
}

func (s *Stream) end() {
	if s.closed {
		return
	}
	s.closed = true
	for i := range s.runs {
		s.endRun(&s.runs[i])
	}
	delete(s.obj.streams, s)
}

// View is a reference to object bytes in the cache.
type View struct {
	cache *Cache
	block *block
	data  []byte
}

// Bytes are valid until Release and must not be written to.
func (v *View) Bytes() []byte { return v.data }

// Release lets the cache reuse the memory. A second Release does nothing; it
// is not safe for concurrent use on one View.
func (v *View) Release() {
	if v.block == nil {
		return
	}
	b := v.block
	v.block, v.data = nil, nil
	v.cache.mu.Lock()
	defer v.cache.mu.Unlock()
	v.cache.unref(b)
}

// View gives the bytes at off, at least one and at most n, without a copy. It
// ends early at the end of a block or of the object. At or past the end it
// is io.EOF. It waits for bytes and for memory, both ended by ctx. A
// caller must not wait for another View, ReadAt or Staging while it holds one:
// memory is given back by those who hold it.
func (s *Stream) View(ctx context.Context, off int64, n int) (*View, error) {
	if off < 0 || n <= 0 {
		return nil, fmt.Errorf("%w: view of %d bytes at %d", ErrInvalid, n, off)
	}
	o := s.obj
	if off >= o.key.Size {
		return nil, io.EOF
	}
	end := min(off+int64(n), o.key.Size)
	c := o.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	b, r, err := s.acquire(ctx, off, end)
	if err != nil {
		return nil, err
	}
	end = min(end, b.end)
	s.touch(b, r, end)
	from, to := off-b.start, end-b.start
	return &View{cache: c, block: b, data: c.arena.bytes(&b.region)[from:to:to]}, nil
}

// ReadAt copies the bytes at off to p. As io.ReaderAt wants, it is short only
// with an error: io.EOF at the end of the object.
func (s *Stream) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("%w: read at %d", ErrInvalid, off)
	}
	n := 0
	for n < len(p) {
		v, err := s.View(ctx, off+int64(n), len(p)-n)
		if err != nil {
			return n, err
		}
		n += copy(p[n:], v.data)
		v.Release()
	}
	return n, nil
}

// acquire gives a reference to the resident block at off, and starts what
// else of [off, end) and beyond should come. c.mu is held on entry and return.
func (s *Stream) acquire(ctx context.Context, off, end int64) (*block, *run, error) {
	o := s.obj
	c := o.cache
	if s.closed || c.closed {
		return nil, nil, ErrClosed
	}
	r := s.follow(off, end)
	b := o.at(off)
	switch {
	case b == nil:
		c.misses++
		var err error
		if b, err = c.demand(ctx, o, off, s.reach(r, off, end)); err != nil {
			return nil, nil, err
		}
	case b.state == stateResident:
		c.hits++
		c.ref(b)
	default:
		c.joined++
		c.ref(b)
	}
	s.readAhead(r, off, end)
	if b.state != stateFilling && b.err == nil {
		return b, r, nil
	}
	c.mu.Unlock()
	var err error
	select {
	case <-b.done:
		err = b.err
	case <-ctx.Done():
		err = ctx.Err()
	}
	c.mu.Lock()
	if err != nil {
		c.unref(b)
		return nil, nil, err
	}
	return b, r, nil
}

// touch notes that b was read up to end, by run r.
func (s *Stream) touch(b *block, r *run, end int64) {
	c := s.obj.cache
	b.unread = false
	c.protect(b, false)
	if r.window == 0 {
		b.spent = false
	} else if end == b.end {
		b.spent = !s.obj.wanted(b, r)
	}
	if r.pos >= s.obj.key.Size {
		s.endRun(r)
	}
}

// follow finds the run that a read continues, or begins one, and moves it on.
func (s *Stream) follow(off, end int64) *run {
	s.clock++
	var found, oldest *run
	best := int64(-1)
	for i := range s.runs {
		r := &s.runs[i]
		if oldest == nil || r.used < oldest.used {
			oldest = r
		}
		if r.used == 0 {
			continue
		}
		// Reads of one run come out of order: the kernel has several
		// under way.
		d := max(off-r.pos, r.pos-off)
		if d <= max(2*(end-off), r.window/2) && (best < 0 || d < best) {
			found, best = r, d
		}
	}
	if found == nil {
		s.endRun(oldest)
		*oldest = run{pos: end, used: s.clock, head: off == 0}
		return oldest
	}
	r := found
	r.used = s.clock
	if end <= r.pos {
		return r // going back makes no run
	}
	r.pos = end
	c := s.obj.cache
	switch {
	case r.window == 0:
		c.runs++
		r.window = min(firstWindow, c.aheadLimit())
		if r.window == 0 {
			c.runs--
			return r
		}
		r.grow = end + r.window
	case end >= r.grow:
		r.window = min(2*r.window, c.aheadLimit())
		r.grow = end + r.window
		if r.window == 0 {
			c.runs--
		}
	}
	return r
}

// reach is how far a fetch at off should go, that has to go to end.
func (s *Stream) reach(r *run, off, end int64) int64 {
	c := s.obj.cache
	limit := max(c.aheadLimit(), c.opt.SmallBlock)
	grain := c.opt.SmallBlock
	switch {
	case r.window > 0:
		grain = max(r.window/4, firstWindow)
	case r.head && off == 0 && s.obj.key.Size <= wholeObject:
		grain = wholeObject
	case r.head && off == 0:
		grain = firstWindow
	default:
		return end
	}
	grain = powerOfTwoBelow(min(grain, limit, c.opt.BlockSize))
	return max(end, (off+grain)&^(grain-1))
}

// readAhead starts the fetches that run r wants, and the rest of [off, end).
func (s *Stream) readAhead(r *run, off, end int64) {
	o := s.obj
	c := o.cache
	at, target := off, end
	if r.window > 0 {
		at = max(r.frontier, off)
		target = min(max(end, r.pos+r.window), o.key.Size)
	}
	if at >= target || r.pos < r.hold || c.readers.Len() > 0 || o.err != nil {
		return
	}
	for at < target {
		if b := o.at(at); b != nil {
			at = b.end
			continue
		}
		stop := target
		if r.window > 0 {
			stop = s.reach(r, at, at+1)
		}
		from, to := o.gap(at, stop)
		b := c.prefetch(o, from, to)
		if b == nil {
			r.hold = r.pos + c.opt.SmallBlock
			if r.window > 0 {
				r.window = max(r.window/2, c.opt.SmallBlock)
				r.grow = r.pos + r.window
			}
			break
		}
		at = b.end
	}
	r.frontier = max(r.frontier, at)
}

// endRun forgets a run, and gives up the read-ahead that only it wanted.
func (s *Stream) endRun(r *run) {
	o := s.obj
	c := o.cache
	if r.window > 0 {
		c.runs--
		for at := r.pos; at < r.frontier; {
			b := o.at(at)
			if b == nil {
				at = (at + c.opt.SmallBlock) &^ (c.opt.SmallBlock - 1)
				continue
			}
			if b.ahead && !o.wanted(b, r) {
				c.abandon(b)
			}
			at = b.end
		}
	}
	*r = run{}
}

// wanted reports whether a run other than r is about to read b.
func (o *Object) wanted(b *block, r *run) bool {
	for s := range o.streams {
		for i := range s.runs {
			x := &s.runs[i]
			if x != r && x.window > 0 && x.pos < b.end && b.start < x.pos+x.window {
				return true
			}
		}
	}
	return false
}
