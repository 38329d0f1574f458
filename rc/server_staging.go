package rc

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync"

	"s3rdmafs/verbs"
)

// minStaging is the smallest staging buffer in bytes.
const minStaging = 64 << 10

var errNoStaging = errors.New("staging memory exhausted")

// staging is a registered buffer. It belongs to one session at a time.
type staging struct {
	key stagingKey
	mem *verbs.Memory
	mr  verbs.MR
}

// stagingKey is what an idle buffer can be used again for. The principal is part
// of it, because a client may know the rkey of a buffer that it used before, and
// because it can leave bytes of a buffer as they were: neither must ever concern
// another principal's data.
type stagingKey struct {
	principal string
	size      int
	remote    bool // REMOTE_WRITE, for PUT
}

// stagingPool hands out registered buffers under a hard limit of bytes.
type stagingPool struct {
	pd    verbs.PD
	limit int64
	max   int // largest buffer
	most  int // buffers, being MRs; 0: no limit

	mu          sync.Mutex
	registered  int64 // includes what is about to be registered, and quarantined
	buffers     int   // that these bytes are in
	inUse       int64
	quarantined int64
	idle        map[stagingKey][]*staging
}

func newStagingPool(pd verbs.PD, limit, largest int64) *stagingPool {
	return &stagingPool{pd: pd, limit: limit, max: int(pagesFor(largest)), idle: make(map[stagingKey][]*staging)}
}

// pagesFor rounds up to whole pages, wholePages down.
func pagesFor(n int64) int64 {
	page := int64(os.Getpagesize())
	return (n + page - 1) / page * page
}

func wholePages(n int64) int64 { return n - n%int64(os.Getpagesize()) }

// class rounds up to the size that a buffer for n bytes has.
func (p *stagingPool) class(n int64) int {
	if n <= minStaging {
		return min(minStaging, p.max)
	}
	return min(1<<bits.Len64(uint64(n-1)), p.max)
}

// get returns a buffer of at least n bytes, errNoStaging when the limit does not
// allow it, or a registration's error.
func (p *stagingPool) get(principal string, n int64, remote bool) (*staging, error) {
	key := stagingKey{principal: principal, size: p.class(n), remote: remote}
	size := int64(key.size)
	p.mu.Lock()
	if list := p.idle[key]; len(list) > 0 {
		b := list[len(list)-1]
		p.shorten(key, list)
		p.inUse += size
		p.mu.Unlock()
		return b, nil
	}
	var evicted []*staging
	room := p.limit - p.registered
	for room < size || p.full(len(evicted)) {
		b := p.takeAny()
		if b == nil {
			break
		}
		evicted = append(evicted, b)
		room += int64(b.key.size)
	}
	p.mu.Unlock()
	for _, b := range evicted {
		p.free(b)
	}

	p.mu.Lock()
	if p.registered+size > p.limit || p.full(0) {
		p.mu.Unlock()
		return nil, errNoStaging
	}
	p.buffers++
	p.registered += size
	p.inUse += size
	p.mu.Unlock()
	b, err := register(p.pd, key)
	if err != nil {
		p.mu.Lock()
		p.buffers--
		p.registered -= size
		p.inUse -= size
		p.mu.Unlock()
		return nil, err
	}
	return b, nil
}

// couldHold reports whether a buffer for n bytes would fit if the idle ones and
// freed bytes of those in use were gone.
func (p *stagingPool) couldHold(n, freed int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inUse+p.quarantined-freed+int64(p.class(n)) <= p.limit
}

// full reports whether there is no MR left once so many buffers are freed. Needs mu.
func (p *stagingPool) full(freed int) bool { return p.most > 0 && p.buffers-freed >= p.most }

func register(pd verbs.PD, key stagingKey) (*staging, error) {
	mem, err := verbs.NewMemory("rc-staging", key.size)
	if err != nil {
		return nil, err
	}
	var access verbs.Access
	if key.remote {
		access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite
	}
	mr, err := pd.RegMR(mem, 0, key.size, access)
	if err != nil {
		return nil, errors.Join(err, mem.Close())
	}
	return &staging{key: key, mem: mem, mr: mr}, nil
}

// takeAny removes one idle buffer, nil when there is none.
func (p *stagingPool) takeAny() *staging {
	for key, list := range p.idle {
		b := list[len(list)-1]
		p.shorten(key, list)
		return b
	}
	return nil
}

func (p *stagingPool) shorten(key stagingKey, list []*staging) {
	if len(list) == 1 {
		delete(p.idle, key)
		return
	}
	list[len(list)-1] = nil
	p.idle[key] = list[:len(list)-1]
}

// free deregisters a buffer that is neither idle nor in use. If that fails a peer
// may still reach the memory, and it stays as it is for good.
func (p *stagingPool) free(b *staging) error {
	err := b.mr.Close()
	if err == nil {
		err = b.mem.Close()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.quarantined += int64(b.key.size)
		return fmt.Errorf("free staging buffer: %w", err)
	}
	p.buffers--
	p.registered -= int64(b.key.size)
	return nil
}

// put takes a buffer back after its QP can no longer reach it. Only a buffer
// that is clean keeps its rkey; others are deregistered.
func (p *stagingPool) put(b *staging, clean bool) error {
	p.mu.Lock()
	p.inUse -= int64(b.key.size)
	if clean || !b.key.remote {
		p.idle[b.key] = append(p.idle[b.key], b)
		p.mu.Unlock()
		return nil
	}
	p.mu.Unlock()
	return p.free(b)
}

// quarantine keeps a buffer registered and out of use for good, because a QP that
// may write into it could not be stopped.
func (p *stagingPool) quarantine(b *staging) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inUse -= int64(b.key.size)
	p.quarantined += int64(b.key.size)
}

// close frees the idle buffers; an error when that failed or others remain.
func (p *stagingPool) close() error {
	p.mu.Lock()
	var all []*staging
	for b := p.takeAny(); b != nil; b = p.takeAny() {
		all = append(all, b)
	}
	p.mu.Unlock()
	var errs []error
	for _, b := range all {
		errs = append(errs, p.free(b))
	}
	if registered, _, _ := p.stats(); registered > 0 {
		errs = append(errs, fmt.Errorf("%w: %d bytes of staging memory are still registered", verbs.ErrUnsafe, registered))
	}
	return errors.Join(errs...)
}

func (p *stagingPool) stats() (registered, inUse, quarantined int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.registered, p.inUse, p.quarantined
}
