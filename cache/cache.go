package cache

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"strings"
	"sync"

	"s3rdmafs/verbs"
)

// Cache is safe for concurrent use.
type Cache struct {
	opt       Options
	log       *slog.Logger
	slotShift uint // log2 of BlockSize
	unitShift uint // log2 of SmallBlock
	staging   int  // first slab that staging may use
	split     bool // a slab serves either reads or staging, not both
	ctx       context.Context
	cancel    context.CancelFunc

	mu         sync.Mutex
	arena      *arena
	names      map[name][]*Object
	closed     bool
	unmapped   bool
	bytes      [stateCount]int64 // by state
	pinned     int64
	lost       int64 // bytes that quarantine takes from reads
	aheadBytes int64 // blocks with ahead set
	runs       int   // sequential runs of all streams
	fetching   int
	idle       chan struct{} // closed when fetching falls to 0

	// Resident blocks without references.
	spent, recent, unread blockList
	turnover              int64 // bytes allocated to read blocks so far
	reclaimGen            uint64

	readers, writers list.List // of *waiter

	counters
}

// New reserves the memory and, with a PD, registers the first part of it. Errors
// wrap ErrInvalid, or verbs.ErrMemlock when the process may not pin that much.
func New(o Options) (*Cache, error) {
	slabSize, err := o.setDefaults()
	if err != nil {
		return nil, err
	}
	a, err := newArena(o.Size, slabSize, o.Rails)
	if err != nil {
		return nil, err
	}
	c := &Cache{
		opt:       o,
		log:       o.Logger,
		slotShift: uint(bits.TrailingZeros64(uint64(o.BlockSize))),
		unitShift: uint(bits.TrailingZeros64(uint64(o.SmallBlock))),
		staging:   len(a.slabs) / 2,
		split:     len(a.slabs) > 1 && len(a.rails) > 0,
		arena:     a,
		names:     map[name][]*Object{},
	}
	_, delta, err := a.register(a.slabs[0])
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cache of %d bytes: %w", o.Size, err), a.mem.Close())
	}
	c.pinned = int64(delta)
	c.bytes[stateFree] = o.Size
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c, nil
}

// Open gives the object version k; each Open wants one Close.
func (c *Cache) Open(k Key) *Object {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := k.name()
	for _, o := range c.names[n] {
		if o.key == k {
			o.handles++
			return o
		}
	}
	o := &Object{key: k, cache: c, handles: 1, slots: map[int64]*slot{}, streams: map[*Stream]struct{}{}}
	c.names[n] = append(c.names[n], o)
	c.objects++
	return o
}

// Invalidate makes the next Open of any version of bucket/key start without
// cached bytes. Versions that are open stay readable for their handles.
func (c *Cache) Invalidate(bucket, key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range append([]*Object(nil), c.names[name{bucket, key}]...) {
		c.detach(o)
		if o.dead() {
			c.drop(o)
		}
	}
}

// readable is what reads may occupy at most, in bytes.
func (c *Cache) readable() int64 {
	n := c.opt.Size - c.lost - c.arena.staged
	if !c.split {
		n -= c.bytes[stateStaging]
	}
	return n
}

// aheadLimit is the largest window of one run: all runs together shall
// leave half of the memory to what is needed at once.
func (c *Cache) aheadLimit() int64 {
	if c.opt.ReadAhead < 0 {
		return 0
	}
	limit := min(c.opt.ReadAhead, c.readable()/2/int64(max(c.runs, 1)))
	return limit &^ (c.opt.SmallBlock - 1)
}

func powerOfTwoBelow(n int64) int64 { return 1 << (bits.Len64(uint64(n)) - 1) }

// Close ends all waits with ErrClosed, ends the fetches under way and waits for
// them as long as ctx lasts. When nothing is referenced any more all memory
// is deregistered and unmapped. Otherwise nothing is unmapped, the error wraps
// ErrHeld (verbs.ErrUnsafe too, when the reason is quarantine) and names what is
// held, and Close may be called again.
func (c *Cache) Close(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unmapped {
		return nil
	}
	c.closed = true
	c.cancel()
	c.pump()
	for c.fetching > 0 {
		if c.idle == nil {
			c.idle = make(chan struct{})
		}
		idle := c.idle
		c.mu.Unlock()
		var err error
		select {
		case <-idle:
		case <-ctx.Done():
			err = ctx.Err()
		}
		c.mu.Lock()
		if err != nil && c.fetching > 0 {
			return fmt.Errorf("%w: %s: %w", ErrHeld, c.held(), err)
		}
	}
	for _, s := range c.arena.slabs {
		for _, r := range s.owner {
			if r != nil && r.state == stateResident {
				c.drain(r.block)
			}
		}
	}
	if c.bytes[stateFree] != c.opt.Size {
		if c.bytes[stateQuarantined] > 0 {
			return fmt.Errorf("%w: %s: %w", ErrHeld, c.held(), verbs.ErrUnsafe)
		}
		return fmt.Errorf("%w: %s", ErrHeld, c.held())
	}
	if c.unmapped {
		return nil
	}
	unpinned, err := c.arena.close()
	c.pinned -= int64(unpinned)
	c.unmapped = err == nil
	return err
}

// held says what keeps Close from its end.
func (c *Cache) held() string {
	var parts []string
	for s, n := range c.bytes {
		if n > 0 && state(s) != stateFree {
			parts = append(parts, fmt.Sprintf("%d bytes %v", n, state(s)))
		}
	}
	for _, s := range c.arena.slabs {
		for _, r := range s.owner {
			if r != nil && r.block != nil {
				k := r.block.obj.key
				return strings.Join(parts, ", ") + fmt.Sprintf(" (first: %s/%s at %d)", k.Bucket, k.Key, r.block.start)
			}
		}
	}
	return strings.Join(parts, ", ")
}
