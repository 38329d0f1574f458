package rc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"s3rdmafs/token"
	"s3rdmafs/verbs"
)

// minCapacity is the smallest capacity asked for, so that transfers of all small
// sizes share kept sessions.
const minCapacity = 1 << 20

// qpSoon is how long a transfer waits for a QP before an idle session must go.
const qpSoon = 20 * time.Millisecond

// keptSession is a kept session (doc/PROTOCOL.md section 5). It belongs to one
// transfer, or to the idle list.
type keptSession struct {
	link     *link
	capacity int64 // bytes
	seq      uint32
	cookie   uint32      // of the last transfer
	expiry   *time.Timer // while idle
	epoch    uint64      // of the endpoint when it was opened
}

// capacityFor is the capacity to open a session with for a transfer of size bytes.
func (c *Client) capacityFor(op Op, size int64) int64 {
	capacity := int64(minCapacity)
	for capacity < size {
		capacity *= 2
	}
	capacity = max(size, min(capacity, c.MaxTransfer(op)))
	if !c.ep.mayRound(capacity) {
		return size
	}
	return capacity
}

// takeKept returns an idle session of the same principal whose server can what is
// needed, the smallest that fits and of those the most recently used; nil if
// there is none.
func (c *Client) takeKept(creds token.Credentials, size int64, need token.Capabilities) *keptSession {
	c.keptMu.Lock()
	defer c.keptMu.Unlock()
	best := -1
	for i, s := range c.idle {
		if s.link.peer.creds == creds && s.capacity >= size && s.link.caps.Has(need) && (best < 0 || s.capacity <= c.idle[best].capacity) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	s := c.idle[best]
	c.idle = append(c.idle[:best], c.idle[best+1:]...)
	s.expiry.Stop()
	return s
}

// openKept makes a kept session. It returns nil and no failure when the endpoint
// takes the transfer in an ordinary session only.
func (c *Client) openKept(ctx context.Context, creds token.Credentials, t *transfer) (*keptSession, *failure, error) {
	if !c.reserve() {
		return nil, nil, nil
	}
	epoch := c.ep.epoch.Load()
	capacity := c.capacityFor(t.op, t.size())
	prepare := func() (*link, *failure, error) {
		return c.connect(ctx, t, creds, token.PrepareRequest{
			Op: t.op, Target: t.target, Size: capacity, Keep: true,
		})
	}
	l, fail, unsafe := prepare()
	if unsafe == nil && tooLarge(fail) && capacity > t.size() {
		c.ep.capacityRefused(capacity)
		capacity = t.size()
		l, fail, unsafe = prepare()
	}
	if fail == nil && unsafe == nil && l.keep > 0 {
		c.keptMu.Lock()
		c.kept++
		c.keptMu.Unlock()
		c.counts.opened()
		return &keptSession{link: l, capacity: capacity, epoch: epoch}, nil, nil
	}
	c.unreserve()
	if unsafe != nil {
		return nil, fail, unsafe
	}
	if fail != nil {
		if fail.cause != causeAnswer {
			return nil, fail, nil
		}
		pause := noKeepTime
		switch status := fail.answer.status; status {
		case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusRequestEntityTooLarge,
			http.StatusTooManyRequests, http.StatusServiceUnavailable:
			return nil, fail, nil
		default:
			if status >= 500 {
				pause = keepPause
			}
		}
		c.ep.noKeep(pause, fmt.Sprintf("status %d %s", fail.answer.status, fail.answer.code))
		return nil, nil, nil
	}
	c.drain(l)
	c.cancel(l)
	c.ep.noKeep(noKeepTime, "the endpoint opened an ordinary session")
	return nil, nil, l.release(c)
}

func tooLarge(f *failure) bool {
	return f != nil && f.cause == causeAnswer && f.answer.status == http.StatusRequestEntityTooLarge
}

// reserve makes room for one more session among those of this client, if need be
// by ending the idle one that was unused for longest.
func (c *Client) reserve() bool {
	c.keptMu.Lock()
	if c.closed {
		c.keptMu.Unlock()
		return false
	}
	if c.open < c.o.Sessions {
		c.open++
		c.keptMu.Unlock()
		return true
	}
	if len(c.idle) == 0 {
		c.keptMu.Unlock()
		return false
	}
	oldest := c.takeOldest()
	c.open++ // the oldest one's place is given back when it has ended
	c.keptMu.Unlock()
	defer c.ending.Done()
	c.end(oldest)
	return true
}

// takeOldest takes the idle session that was unused for longest off the list, of
// which there is one. The caller ends it, and then calls ending.Done. Needs keptMu.
func (c *Client) takeOldest() *keptSession {
	oldest := c.idle[0]
	c.idle = c.idle[1:]
	oldest.expiry.Stop()
	c.ending.Add(1)
	return oldest
}

// queuePair gets a QP. Where the pool has none left, an idle session gives its own.
func (c *Client) queuePair(ctx context.Context) (*verbs.Conn, error) {
	get := func(d time.Duration) (*verbs.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		return c.o.Pool.Get(ctx)
	}
	conn, err := get(qpSoon)
	if !errors.Is(err, context.DeadlineExceeded) {
		return conn, err
	}
	c.keptMu.Lock()
	if len(c.idle) > 0 {
		oldest := c.takeOldest()
		c.keptMu.Unlock()
		c.end(oldest)
		c.ending.Done()
	} else {
		c.keptMu.Unlock()
	}
	return get(qpWait)
}

func (c *Client) unreserve() {
	c.keptMu.Lock()
	defer c.keptMu.Unlock()
	c.open--
}

// lost takes a kept session out of the books.
func (c *Client) lost() {
	c.keptMu.Lock()
	defer c.keptMu.Unlock()
	c.open--
	c.kept--
}

// next runs a transfer in a kept session: one round trip. After a failure the
// session is gone.
func (c *Client) next(ctx context.Context, s *keptSession, t *transfer) (f token.Final, fail *failure, unsafe error) {
	lose := func(fail *failure) (token.Final, *failure, error) {
		fail.kept = true
		c.drain(s.link)
		c.cancel(s.link)
		unsafe := s.link.release(c)
		c.lost()
		return token.Final{}, fail, unsafe
	}
	// Nothing is outstanding in an idle session, so any completion is foreign.
	select {
	case wc := <-s.link.conn.Completions():
		return lose(&failure{phase: PhaseReady, cause: causeCompletion,
			err: fmt.Errorf("%w: %s in an idle session", ErrCompletion, wc.Status)})
	default:
	}
	s.seq++
	cookie := newCookie()
	for cookie == s.cookie {
		cookie = newCookie()
	}
	s.cookie = cookie
	r := token.NextRequest{
		Session: s.link.session, Seq: s.seq, Cookie: cookie,
		Op: t.op, Target: t.target, Size: t.size(), Offset: t.offset, Extras: t.extras,
	}
	if t.op == OpGet {
		r.MRAddr, r.MRRKey = t.seg.Addr(), t.seg.MR.RKey()
		if err := s.link.conn.PostRecv(verbs.RecvWR{ID: uint64(cookie)}); err != nil {
			return lose(&failure{phase: PhaseReady, cause: causeCompletion, err: fmt.Errorf("post receive: %w", err)})
		}
	}
	x := &exchange{c: c, link: s.link, t: t, cookie: cookie, path: token.PathNext, header: r.Header(), kept: true, atOnce: true}
	f, fail = x.run(ctx)
	if fail != nil {
		if errors.Is(fail.err, ErrCookie) {
			fail.err = fmt.Errorf("kept session: %w", fail.err)
		}
		return lose(fail)
	}
	c.counts.keptTransfer()
	c.idleAgain(s)
	return f, nil, nil
}

// idleAgain puts a session that ended its transfer well on the idle list.
func (c *Client) idleAgain(s *keptSession) {
	hold := min(c.o.KeepIdle, s.link.keep*3/4)
	c.keptMu.Lock()
	// Suspend and SetGID count the epoch before they end what is idle.
	if c.closed || s.seq == 1<<32-1 || s.epoch != c.ep.epoch.Load() {
		c.keptMu.Unlock()
		c.end(s)
		return
	}
	s.expiry = time.AfterFunc(hold, func() { c.expire(s) })
	c.idle = append(c.idle, s)
	c.keptMu.Unlock()
}

// expire ends a session that was idle for too long, unless a transfer just took it.
func (c *Client) expire(s *keptSession) {
	c.keptMu.Lock()
	for i, other := range c.idle {
		if other == s {
			c.idle = append(c.idle[:i], c.idle[i+1:]...)
			c.ending.Add(1)
			c.keptMu.Unlock()
			defer c.ending.Done()
			c.end(s)
			return
		}
	}
	c.keptMu.Unlock()
}

// end gives an idle session up. No memory of a transfer is bound to it.
func (c *Client) end(s *keptSession) {
	c.drain(s.link)
	c.cancel(s.link)
	if err := s.link.release(c); err != nil {
		c.log.Error("queue pair of an idle session not destroyed", "err", err)
	}
	c.lost()
}
