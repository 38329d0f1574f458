package shm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"s3rdmafs/verbs"
)

// cqe is a completion together with the work-queue entries that are free again
// once it was polled. As on hardware, an unsignaled send keeps its entry until
// the completion of a later send is taken.
type cqe struct {
	wc     verbs.WC
	qp     *qp
	sq, rq int32
}

type cq struct {
	dev *Device
	ch  *compChannel

	mu     sync.Mutex
	ring   []cqe
	head   int
	n      int
	armed  bool
	broken bool
	closed bool

	refs int // QPs using it; guarded by dev.mu
}

func (c *cq) Depth() int { return len(c.ring) }

// push adds a completion and reports whether there was room. The first
// completion without room breaks the queue for good.
func (c *cq) push(e cqe) (overrun bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken || c.closed {
		return false
	}
	if c.n == len(c.ring) {
		c.broken = true
		return true
	}
	c.ring[(c.head+c.n)%len(c.ring)] = e
	c.n++
	if c.armed {
		c.armed = false
		c.ch.post(c)
	}
	return false
}

// purge removes the completions of q, as a reset of the QP does.
func (c *cq) purge(q *qp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := 0
	for i := range c.n {
		e := c.ring[(c.head+i)%len(c.ring)]
		if e.qp != q {
			c.ring[(c.head+kept)%len(c.ring)] = e
			kept++
		}
	}
	for i := kept; i < c.n; i++ {
		c.ring[(c.head+i)%len(c.ring)] = cqe{}
	}
	c.n = kept
}

func (c *cq) Poll(wc []verbs.WC) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return 0, verbs.ErrClosed
	case c.broken:
		return 0, verbs.ErrCQOverrun
	}
	n := min(len(wc), c.n)
	for i := range n {
		e := &c.ring[c.head]
		wc[i] = e.wc
		e.qp.sqUsed.Add(-e.sq)
		e.qp.rqUsed.Add(-e.rq)
		*e = cqe{}
		c.head = (c.head + 1) % len(c.ring)
	}
	c.n -= n
	return n, nil
}

func (c *cq) ReqNotify() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return verbs.ErrClosed
	case c.ch == nil:
		return fmt.Errorf("%w: CQ has no completion channel", verbs.ErrInvalid)
	}
	c.armed = true
	return nil
}

func (c *cq) Close() error {
	d := c.dev
	d.mu.Lock()
	if c.refs > 0 {
		d.mu.Unlock()
		return fmt.Errorf("%w: CQ of %d QPs", verbs.ErrBusy, c.refs)
	}
	if _, ok := d.cqs[c]; !ok {
		d.mu.Unlock()
		return nil
	}
	delete(d.cqs, c)
	if c.ch != nil {
		c.ch.refs--
	}
	d.mu.Unlock()

	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	if c.ch != nil {
		c.ch.remove(c)
	}
	return nil
}

// errorWC is a completion that failed. Everything but the four valid fields is
// junk, so that a reader of the others is found out.
func errorWC(id uint64, qpn uint32, status verbs.WCStatus) verbs.WC {
	return verbs.WC{
		ID:        id,
		Status:    status,
		QPN:       qpn,
		VendorErr: rand.Uint32N(0xff) + 1,
		Opcode:    verbs.WCOpcode(rand.Uint32()),
		ByteLen:   rand.Uint32(),
		Imm:       rand.Uint32(),
		Flags:     verbs.WCFlags(rand.Uint32()),
	}
}

type compChannel struct {
	dev *Device

	mu      sync.Mutex
	pending []*cq
	wake    chan struct{} // holds one token while pending is not empty
	done    chan struct{}

	refs int // CQs using it; guarded by dev.mu
}

func (c *compChannel) post(q *cq) {
	c.mu.Lock()
	c.pending = append(c.pending, q)
	c.signal()
	c.mu.Unlock()
}

func (c *compChannel) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *compChannel) remove(q *cq) {
	c.mu.Lock()
	c.pending = slices.DeleteFunc(c.pending, func(p *cq) bool { return p == q })
	c.mu.Unlock()
}

func (c *compChannel) Wait(ctx context.Context) (verbs.CQ, error) {
	for {
		select {
		case <-c.done:
			return nil, verbs.ErrClosed
		default:
		}
		c.mu.Lock()
		if len(c.pending) > 0 {
			q := c.pending[0]
			c.pending = slices.Delete(c.pending, 0, 1)
			if len(c.pending) > 0 {
				c.signal()
			}
			c.mu.Unlock()
			return q, nil
		}
		c.mu.Unlock()
		select {
		case <-c.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-c.done:
		}
	}
}

func (c *compChannel) Close() error {
	d := c.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.refs > 0 {
		return fmt.Errorf("%w: completion channel of %d CQs", verbs.ErrBusy, c.refs)
	}
	if _, ok := d.channels[c]; ok {
		delete(d.channels, c)
		close(c.done)
	}
	return nil
}
