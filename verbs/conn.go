package verbs

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// flushGrace is how long Drain waits for flushed completions even when ctx
	// has ended: they take microseconds, a new QP takes longer.
	flushGrace = 50 * time.Millisecond
	// flushPatience is after which a QP whose completions do not come is destroyed.
	flushPatience = 2 * time.Second
	// flushPoll is how often Drain looks into the CQ itself.
	flushPoll = 10 * time.Millisecond
)

// ConnectAttr are the values that two sides agree on, and those of the path.
type ConnectAttr struct {
	DestQPN uint32
	RQPSN   uint32 // the peer's PSN
	DGID    GID
	DLID    uint16 // 0 on RoCE
	// SGIDIndex is the index of the own GID that the peer was told.
	SGIDIndex    int
	MTU          MTU // the same on both sides
	Port         uint8
	TrafficClass uint8
	SL           uint8
	Timeout      uint8 // 0: 14, about 67 ms
	RetryCnt     uint8 // 0: 7
	RNRRetry     uint8 // 0: 7, without end
	// NoAccess gives the peer none of the rights of PoolOptions.Access.
	NoAccess bool
}

// Conn is one life of a pooled QP, from Get to Release. All methods may be
// called concurrently.
type Conn struct {
	pool *Pool
	mux  *mux
	qp   QP
	psn  uint32
	life uint64
	ch   chan WC
	// draining holds a token while a goroutine drains.
	draining chan struct{}

	mu           sync.Mutex
	sends, recvs postedQueue
	connected    bool
	closing      bool // no more posts
	drained      bool
	destroyed    bool
	released     bool
	failed       bool          // the device gave the QP up: never to be used again
	lost         bool          // the CQ broke, or failed: completions are not told any more
	quiet        chan struct{} // closed when nothing is outstanding; set by Drain
}

// posted is a work request whose end is not known.
type posted struct {
	id       uint64
	signaled bool
	marker   bool // posted by Drain, not by the user
}

// postedQueue holds work requests in order; the first has the number head.
type postedQueue struct {
	head uint64
	wrs  []posted
}

// The work request IDs given to the device: a bit for the receive queue, the
// life of the Conn, and the number in its queue. Error completions have no valid
// opcode, so the ID must tell sends from receives.
const (
	recvBit  = 1 << 63
	seqBits  = 40
	seqMask  = 1<<seqBits - 1
	lifeMask = 1<<(63-seqBits) - 1
)

// take removes the work requests up to number seq and returns that one.
func (q *postedQueue) take(seq uint64) (posted, bool) {
	i := (seq - q.head) & seqMask
	if i >= uint64(len(q.wrs)) {
		return posted{}, false
	}
	wr := q.wrs[i]
	q.wrs = q.wrs[i+1:]
	q.head = (seq + 1) & seqMask
	return wr, true
}

func (q *postedQueue) nextID(life uint64) uint64 {
	return life<<seqBits | (q.head+uint64(len(q.wrs)))&seqMask
}

// QPN is the QP's number.
func (c *Conn) QPN() uint32 { return c.qp.Num() }

// PSN is the own send PSN, to be told to the peer.
func (c *Conn) PSN() uint32 { return c.psn }

// QP is the queue pair itself. Work requests must go through the Conn.
func (c *Conn) QP() QP { return c.qp }

// Completions delivers the completions of this QP in order, with the IDs
// that were posted. It is never closed. Every signaled send and every receive
// gives exactly one; an unsignaled send gives one only if it fails. A completion
// with WCFatalErr tells that the CQ or the QP was lost.
func (c *Conn) Completions() <-chan WC { return c.ch }

// Connect brings the QP from INIT to RTS towards the peer.
func (c *Conn) Connect(a ConnectAttr) error {
	if err := c.ToRTR(a); err != nil {
		return err
	}
	return c.ToRTS(a)
}

// ToRTR is the first half of Connect: from then on the peer can write.
func (c *Conn) ToRTR(a ConnectAttr) error {
	if a.Port == 0 {
		a.Port = c.pool.o.Port
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return ErrClosed
	}
	// Even a transition that fails may have been begun by the device.
	c.connected = true
	mask := MaskRTR
	if a.NoAccess {
		mask |= AttrAccessFlags // of which none is set
	}
	err := c.qp.Modify(QPAttr{
		State:   StateRTR,
		PathMTU: a.MTU,
		DestQPN: a.DestQPN,
		RQPSN:   a.RQPSN,
		AH: AHAttr{
			DGID:         a.DGID,
			SGIDIndex:    a.SGIDIndex,
			DLID:         a.DLID,
			HopLimit:     64,
			TrafficClass: a.TrafficClass,
			SL:           a.SL,
			IsGlobal:     true,
			PortNum:      a.Port,
		},
		MaxDestRdAtomic: 1,
		MinRNRTimer:     12,
	}, mask)
	if err != nil {
		return fmt.Errorf("QP to RTR: %w", err)
	}
	return nil
}

// ToRTS is the second half of Connect: from then on sends can be posted.
func (c *Conn) ToRTS(a ConnectAttr) error {
	def := func(v, d uint8) uint8 {
		if v == 0 {
			return d
		}
		return v
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return ErrClosed
	}
	err := c.qp.Modify(QPAttr{
		State:       StateRTS,
		SQPSN:       c.psn,
		Timeout:     def(a.Timeout, 14),
		RetryCnt:    def(a.RetryCnt, 7),
		RNRRetry:    def(a.RNRRetry, 7),
		MaxRdAtomic: 1,
	}, MaskRTS)
	if err != nil {
		return fmt.Errorf("QP to RTS: %w", err)
	}
	return nil
}

// PostSend posts a send. ErrQueueFull: too many are outstanding or too many
// completions were not read; ErrClosed: the Conn is being drained.
func (c *Conn) PostSend(wr SendWR) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.mayPost(len(c.sends.wrs), c.pool.o.Cap.MaxSendWR); err != nil {
		return err
	}
	return c.postSend(wr, posted{id: wr.ID, signaled: wr.Signaled})
}

func (c *Conn) postSend(wr SendWR, p posted) error {
	wr.ID = c.sends.nextID(c.life)
	if err := c.qp.PostSend(wr); err != nil {
		return err
	}
	c.sends.wrs = append(c.sends.wrs, p)
	return nil
}

// PostRecv posts a receive; errors as for PostSend.
func (c *Conn) PostRecv(wr RecvWR) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.mayPost(len(c.recvs.wrs), c.pool.o.Cap.MaxRecvWR); err != nil {
		return err
	}
	p := posted{id: wr.ID, signaled: true}
	wr.ID = c.recvs.nextID(c.life) | recvBit
	if err := c.qp.PostRecv(wr); err != nil {
		return err
	}
	c.recvs.wrs = append(c.recvs.wrs, p)
	return nil
}

// mayPost keeps room in the channel for the completion of everything
// outstanding, so that the poller never blocks.
func (c *Conn) mayPost(outstanding, limit int) error {
	if c.closing || c.lost {
		return ErrClosed
	}
	if outstanding >= limit || len(c.sends.wrs)+len(c.recvs.wrs)+len(c.ch) >= cap(c.ch) {
		return ErrQueueFull
	}
	return nil
}

// deliver takes a completion of this QP from the poller; false if it is of an
// earlier life of the QP.
func (c *Conn) deliver(wc WC) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if wc.ID&^recvBit>>seqBits != c.life {
		return false
	}
	q := &c.sends
	if wc.ID&recvBit != 0 {
		q = &c.recvs
	}
	wr, ok := q.take(wc.ID & seqMask)
	if !ok {
		return false
	}
	if !wr.marker && !c.lost {
		wc.ID = wr.id
		c.ch <- wc
	}
	if c.quiet != nil && c.outstanding() == 0 {
		close(c.quiet)
		c.quiet = nil
	}
	return true
}

func (c *Conn) outstanding() int { return len(c.sends.wrs) + len(c.recvs.wrs) }

// abandon tells the user that the CQ was lost. The work requests stay
// outstanding, as the device may still carry them out.
func (c *Conn) abandon() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.lost && !c.destroyed && !c.released {
		c.lost = true
		c.report(WCFatalErr)
	}
}

// fail keeps the QP, which the device gave up, from being used again. What
// still completes is told as it is, the rest after flushGrace.
func (c *Conn) fail() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = true
	time.AfterFunc(flushGrace, c.abandon)
}

// report gives each outstanding work request a completion.
func (c *Conn) report(s WCStatus) {
	for _, q := range []*postedQueue{&c.sends, &c.recvs} {
		for _, wr := range q.wrs {
			if !wr.marker {
				c.ch <- WC{ID: wr.id, Status: s, QPN: c.qp.Num()}
			}
		}
	}
}

// Drain moves the QP to ERR and waits until every posted work request came
// back. Once it returned nil, no packet can touch memory through this QP, and no
// work request reads any. When the completions do not come, or ctx ends before,
// the QP is destroyed, which gives the same guarantee. An error that wraps
// ErrUnsafe says that not even that worked. Nothing can be posted any more.
// Calling it again does nothing.
func (c *Conn) Drain(ctx context.Context) error {
	if err := c.acquire(ctx); err != nil {
		return err
	}
	defer func() { <-c.draining }()

	c.mu.Lock()
	c.closing = true
	done := c.drained || c.destroyed
	if !c.connected && c.outstanding() == 0 {
		// A QP in INIT takes no packets.
		c.drained = true
		done = true
	}
	c.mu.Unlock()
	if done {
		return nil
	}
	if err := c.qp.Modify(QPAttr{State: StateErr}, AttrState); err != nil {
		c.pool.log.Warn("verbs: QP not drained", "qpn", c.qp.Num(), "err", err)
		return c.destroy()
	}
	c.mu.Lock()
	if n := len(c.sends.wrs); n > 0 && !c.sends.wrs[n-1].signaled {
		// Unsignaled sends that were good never tell. The completion of one more,
		// flushed like the others, says that they are over.
		if err := c.postSend(SendWR{Opcode: OpWrite, Signaled: true}, posted{signaled: true, marker: true}); err != nil {
			c.mu.Unlock()
			return c.destroy()
		}
	}
	quiet := make(chan struct{})
	if c.outstanding() == 0 {
		close(quiet)
	} else {
		c.quiet = quiet
	}
	c.mu.Unlock()
	if !c.awaitFlush(ctx, quiet) {
		return c.destroy()
	}
	c.mu.Lock()
	c.drained = true
	c.mu.Unlock()
	return nil
}

// acquire takes the token that keeps Drain and Release apart. A free one is
// taken even when ctx has ended: giving up must work then, too.
func (c *Conn) acquire(ctx context.Context) error {
	select {
	case c.draining <- struct{}{}:
		return nil
	default:
	}
	select {
	case c.draining <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// awaitFlush waits until quiet is closed; false if there is no point in waiting.
func (c *Conn) awaitFlush(ctx context.Context, quiet <-chan struct{}) bool {
	// Most often the flushed completions are there already.
	if _, err := c.mux.poll(); err != nil {
		return false
	}
	select {
	case <-quiet:
		return true
	default:
	}
	grace := time.NewTimer(flushGrace)
	defer grace.Stop()
	patience := time.NewTimer(flushPatience)
	defer patience.Stop()
	look := time.NewTicker(flushPoll)
	defer look.Stop()
	var ended <-chan struct{}
	for {
		select {
		case <-quiet:
			return true
		case <-c.mux.broken:
			return false
		case <-look.C:
			if _, err := c.mux.poll(); err != nil {
				return false
			}
		case <-grace.C:
			ended = ctx.Done()
		case <-ended:
			return false
		case <-patience.C:
			return false
		}
	}
}

// destroy ends the QP when it cannot be drained. The caller holds the token.
func (c *Conn) destroy() error {
	if err := c.pool.destroy(idleQP{qp: c.qp, mux: c.mux}); err != nil {
		return err
	}
	c.mux.unregister(c)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.destroyed = true
	if !c.lost {
		c.report(WCWRFlushErr)
	}
	c.sends, c.recvs = postedQueue{}, postedQueue{}
	return nil
}

// Release drains the QP and gives it back to the pool; one that cannot be
// recycled is destroyed. The Conn is of no more use. After an error that wraps
// ErrUnsafe the QP stays out, and Release may be called again.
func (c *Conn) Release(ctx context.Context) error {
	if err := c.Drain(ctx); err != nil {
		return err
	}
	if err := c.acquire(ctx); err != nil {
		return err
	}
	defer func() { <-c.draining }()
	c.mu.Lock()
	done, destroyed, failed := c.released, c.destroyed, c.failed
	c.mu.Unlock()
	if done {
		return nil
	}
	if failed && !destroyed {
		if err := c.destroy(); err != nil {
			return err
		}
		destroyed = true
	}
	if destroyed {
		c.pool.outDestroyed()
	} else {
		c.mux.unregister(c)
		if err := c.pool.giveBack(idleQP{qp: c.qp, mux: c.mux}); err != nil {
			return err
		}
	}
	c.mu.Lock()
	c.released = true
	c.mu.Unlock()
	return nil
}
