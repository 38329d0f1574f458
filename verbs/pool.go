package verbs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// PoolOptions describe a Pool.
type PoolOptions struct {
	PD   PD
	Port uint8 // default 1
	// MaxQPs is how many QPs may be out at a time; default 256, at most what the
	// device has.
	MaxQPs int
	// CQs share the QPs; default 1 to 4 by the number of CPUs.
	CQs int
	// CQDepth is the number of entries of each CQ; 0: enough for all work
	// requests that can be outstanding.
	CQDepth int
	// Cap are the limits of each QP; default 2 sends, 2 receives, 1 SGE.
	Cap QPCap
	// Access is what the peer of a QP may do through it.
	Access Access
	// IdleQPs is how many QPs are kept for later; 0: as many as MaxQPs,
	// negative: none.
	IdleQPs int
	// Spin is how long a poller that was busy keeps polling before it arms the
	// channel, as long as that pays. 0: a value that suits the device and the
	// number of CPUs; negative: not at all.
	Spin   time.Duration
	Logger *slog.Logger

	cut []string // what was more than the device has
}

// PoolStats are counters since NewPool, apart from Open and InUse.
type PoolStats struct {
	Open, InUse                  int
	Created, Recycled, Destroyed uint64
	// CompletionErrors counts completions by status; flushed ones are normal.
	CompletionErrors map[WCStatus]uint64
	// Stray counts completions for which no QP was found.
	Stray uint64
}

// Pool hands out RC QPs in INIT and takes them back, on CQs it owns. Making a
// QP is expensive; recycling one (ERR → drained → RESET → INIT) is not.
// All methods may be called concurrently.
type Pool struct {
	dev    Device
	o      PoolOptions
	log    *slog.Logger
	slots  chan struct{} // one token per QP that is out
	closed chan struct{}
	life   atomic.Uint64 // numbers the Conns
	stray  atomic.Uint64
	errs   [WCGeneralErr + 1]atomic.Uint64 // completions by status

	mu       sync.Mutex
	muxes    []*mux // those that work, and broken ones that still have QPs
	idle     []idleQP
	undead   []idleQP // those that could not be destroyed
	stats    PoolStats
	shutdown bool
}

// idleQP is a QP in INIT without work requests.
type idleQP struct {
	qp  QP
	mux *mux
}

// NewPool makes a pool of QPs in o.PD, a PD of dev. The caller keeps both open
// until Close returned nil.
func NewPool(dev Device, o PoolOptions) (*Pool, error) {
	if o.PD == nil {
		return nil, fmt.Errorf("%w: pool without PD", ErrInvalid)
	}
	if o.Port == 0 {
		o.Port = 1
	}
	if err := o.fit(dev.Attr()); err != nil {
		return nil, fmt.Errorf("device %s: %w", dev.Name(), err)
	}
	if o.IdleQPs == 0 {
		o.IdleQPs = o.MaxQPs
	}
	o.Spin = spinFor(dev, o.Spin)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	p := &Pool{
		dev:    dev,
		o:      o,
		log:    o.Logger,
		slots:  make(chan struct{}, o.MaxQPs),
		closed: make(chan struct{}),
	}
	for range o.CQs {
		m, err := newMux(p, o.CQDepth)
		if err != nil {
			return nil, errors.Join(err, p.Close())
		}
		p.muxes = append(p.muxes, m)
	}
	return p, nil
}

// fit sets the defaults of the sizes and cuts them to what the device has.
func (o *PoolOptions) fit(attr DeviceAttr) error {
	if o.MaxQPs <= 0 {
		o.MaxQPs = 256
	}
	wanted := *o
	o.MaxQPs = min(o.MaxQPs, attr.MaxQP)
	if o.Cap == (QPCap{}) {
		o.Cap = QPCap{MaxSendWR: 2, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1}
	}
	wanted.Cap = o.Cap
	// One send more is for the request that marks the end of the drained ones.
	o.Cap.MaxSendWR = min(o.Cap.MaxSendWR, attr.MaxQPWR-1)
	o.Cap.MaxRecvWR = min(o.Cap.MaxRecvWR, attr.MaxQPWR)
	o.Cap.MaxSendSGE = min(o.Cap.MaxSendSGE, attr.MaxSGE)
	o.Cap.MaxRecvSGE = min(o.Cap.MaxRecvSGE, attr.MaxSGE)
	if o.CQs <= 0 {
		o.CQs = max(1, min(4, runtime.GOMAXPROCS(0)/2))
	}
	o.CQs = min(o.CQs, o.MaxQPs, attr.MaxCQ)
	perQP := o.Cap.MaxSendWR + 1 + o.Cap.MaxRecvWR
	most := attr.MaxCQE / perQP // QPs that one CQ can serve
	if o.CQs < 1 || o.Cap.MaxSendWR < 1 || o.Cap.MaxRecvWR < 1 || most < 1 {
		return fmt.Errorf("%w: too small for a pool: %d QPs with %d work requests, %d CQs with %d entries",
			ErrNoResource, attr.MaxQP, attr.MaxQPWR, attr.MaxCQ, attr.MaxCQE)
	}
	if o.CQDepth <= 0 {
		o.CQs = min(max(o.CQs, (o.MaxQPs+most-1)/most), attr.MaxCQ)
		o.MaxQPs = min(o.MaxQPs, o.CQs*most)
		o.CQDepth = (o.MaxQPs + o.CQs - 1) / o.CQs * perQP
	}
	o.CQDepth = min(o.CQDepth, attr.MaxCQE)
	for _, c := range []struct {
		what        string
		wanted, has int
	}{
		{"queue pairs", wanted.MaxQPs, o.MaxQPs},
		{"CQ depth", wanted.CQDepth, o.CQDepth},
		{"send requests", wanted.Cap.MaxSendWR, o.Cap.MaxSendWR},
		{"receive requests", wanted.Cap.MaxRecvWR, o.Cap.MaxRecvWR},
	} {
		if c.wanted > c.has {
			o.cut = append(o.cut, fmt.Sprintf("%s from %d to %d", c.what, c.wanted, c.has))
		}
	}
	return nil
}

// Cut says in words which sizes the pool was to have and the device has not.
func (p *Pool) Cut() []string { return p.o.cut }

// PoolLimits are the sizes that a pool has after they were cut to the device.
type PoolLimits struct {
	MaxQPs, CQs, CQDepth int
	Cap                  QPCap
}

// Limits returns the sizes of the pool.
func (p *Pool) Limits() PoolLimits {
	return PoolLimits{MaxQPs: p.o.MaxQPs, CQs: p.o.CQs, CQDepth: p.o.CQDepth, Cap: p.o.Cap}
}

// Get returns a QP in INIT with a fresh PSN. It blocks while MaxQPs are out,
// until ctx ends; ErrClosed after Close.
func (p *Pool) Get(ctx context.Context) (*Conn, error) {
	select {
	case <-p.closed:
		return nil, ErrClosed
	default:
	}
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.closed:
		return nil, ErrClosed
	}
	c, err := p.take()
	if err != nil {
		<-p.slots
		return nil, err
	}
	return c, nil
}

func (p *Pool) take() (*Conn, error) {
	for {
		p.mu.Lock()
		if p.shutdown {
			p.mu.Unlock()
			return nil, ErrClosed
		}
		if len(p.idle) > 0 {
			// The one that rested longest: its stray packets are gone.
			q := p.idle[0]
			p.idle = p.idle[1:]
			usable := !q.mux.isBroken()
			if usable {
				p.stats.Recycled++
				p.stats.InUse++
			}
			p.mu.Unlock()
			if usable {
				return p.newConn(q), nil
			}
			_ = p.dispose(q) // tried again
			continue
		}
		if p.stats.Open >= p.o.MaxQPs && len(p.undead) > 0 {
			// The new QP would be one more than the device was asked for.
			q := p.undead[0]
			p.undead = p.undead[1:]
			p.mu.Unlock()
			if err := p.dispose(q); err != nil {
				return nil, err
			}
			continue
		}
		m, err := p.pickMux()
		if err != nil {
			p.mu.Unlock()
			return nil, err
		}
		m.qps++
		p.stats.Open++
		p.stats.InUse++
		p.stats.Created++
		p.mu.Unlock()
		q, err := p.create(m)
		if err != nil {
			p.mu.Lock()
			p.stats.InUse--
			if q.qp != nil {
				p.undead = append(p.undead, q)
			} else {
				p.stats.Created--
				p.forget(m)
			}
			p.mu.Unlock()
			return nil, err
		}
		return p.newConn(q), nil
	}
}

// pickMux returns the CQ with the fewest QPs, and replaces broken ones. p.mu is held.
func (p *Pool) pickMux() (*mux, error) {
	var best *mux
	working := 0
	for _, m := range p.muxes {
		if m.isBroken() {
			continue
		}
		working++
		if best == nil || m.qps < best.qps {
			best = m
		}
	}
	if working < p.o.CQs {
		m, err := newMux(p, p.o.CQDepth)
		if err != nil {
			if best != nil {
				return best, nil
			}
			return nil, err
		}
		p.muxes = append(p.muxes, m)
		return m, nil
	}
	return best, nil
}

// create makes a QP in INIT. With an error it returns the QP only if that could
// not be destroyed.
func (p *Pool) create(m *mux) (idleQP, error) {
	c := p.o.Cap
	// One more for the request that marks the end of the drained ones.
	c.MaxSendWR++
	q, err := p.o.PD.CreateQP(QPInitAttr{SendCQ: m.cq, RecvCQ: m.cq, Cap: c})
	if err != nil {
		return idleQP{}, fmt.Errorf("create QP: %w", err)
	}
	if err := p.toInit(q); err != nil {
		if cerr := q.Close(); cerr != nil {
			return idleQP{qp: q, mux: m}, errors.Join(err, cerr)
		}
		return idleQP{}, err
	}
	return idleQP{qp: q, mux: m}, nil
}

func (p *Pool) toInit(q QP) error {
	err := q.Modify(QPAttr{State: StateInit, Port: p.o.Port, AccessFlags: p.o.Access}, MaskInit)
	if err != nil {
		return fmt.Errorf("QP to INIT: %w", err)
	}
	return nil
}

func (p *Pool) newConn(q idleQP) *Conn {
	c := &Conn{
		pool:     p,
		mux:      q.mux,
		qp:       q.qp,
		psn:      psns.next(),
		life:     p.life.Add(1) & lifeMask,
		ch:       make(chan WC, 2*(p.o.Cap.MaxSendWR+p.o.Cap.MaxRecvWR)),
		draining: make(chan struct{}, 1),
	}
	q.mux.register(c)
	return c
}

// giveBack takes a drained QP that its Conn has let go of.
func (p *Pool) giveBack(q idleQP) error {
	err := q.qp.Modify(QPAttr{State: StateReset}, AttrState)
	if err == nil {
		err = p.toInit(q.qp)
	}
	p.mu.Lock()
	if err == nil && !p.shutdown && !q.mux.isBroken() && len(p.idle) < p.o.IdleQPs {
		p.idle = append(p.idle, q)
		p.stats.InUse--
		p.mu.Unlock()
		<-p.slots
		return nil
	}
	p.mu.Unlock()
	if err != nil {
		p.log.Warn("verbs: QP not recycled", "qpn", q.qp.Num(), "err", err)
	}
	if err := p.destroy(q); err != nil {
		return err
	}
	p.outDestroyed()
	return nil
}

// outDestroyed accounts for a QP that was destroyed while it was out.
func (p *Pool) outDestroyed() {
	p.mu.Lock()
	p.stats.InUse--
	p.mu.Unlock()
	<-p.slots
}

func (p *Pool) destroy(q idleQP) error {
	if err := q.qp.Close(); err != nil {
		return fmt.Errorf("%w: destroy QP: %w", ErrUnsafe, err)
	}
	p.mu.Lock()
	p.stats.Destroyed++
	p.forget(q.mux)
	p.mu.Unlock()
	return nil
}

// dispose destroys a QP that nobody uses. One that cannot be destroyed is kept to
// try again, at Close at the latest: CQ and PD cannot be closed before it.
func (p *Pool) dispose(q idleQP) error {
	err := p.destroy(q)
	if err != nil {
		p.log.Error("verbs: idle QP not destroyed", "qpn", q.qp.Num(), "err", err)
		p.mu.Lock()
		p.undead = append(p.undead, q)
		p.mu.Unlock()
	}
	return err
}

// forget takes a QP off the count of its CQ; a broken CQ goes with its last
// QP. p.mu is held.
func (p *Pool) forget(m *mux) {
	p.stats.Open--
	m.qps--
	if m.qps > 0 || !m.isBroken() {
		return
	}
	if err := m.close(); err != nil {
		p.log.Error("verbs: CQ not destroyed", "err", err)
		return
	}
	p.muxes = slices.DeleteFunc(p.muxes, func(other *mux) bool { return other == m })
}

// FailQP takes a QP out of use that the device gave up: it is destroyed instead
// of recycled, and its user gets a completion with WCFatalErr for each work request
// that does not complete by itself soon. It reports whether the pool has such a QP.
func (p *Pool) FailQP(qpn uint32) bool {
	p.mu.Lock()
	for i, q := range p.idle {
		if q.qp.Num() == qpn {
			// The event may be about a life of the QP that is over.
			if state, err := q.qp.State(); err == nil && state != StateErr {
				p.mu.Unlock()
				return false
			}
			p.idle = append(p.idle[:i:i], p.idle[i+1:]...)
			p.mu.Unlock()
			_ = p.dispose(q) // tried again
			return true
		}
	}
	muxes := slices.Clone(p.muxes)
	p.mu.Unlock()
	for _, m := range muxes {
		if m.failConn(qpn) {
			return true
		}
	}
	return false
}

// checkCQs notices CQs that are lost although nobody is about to poll them.
func (p *Pool) checkCQs() {
	p.mu.Lock()
	muxes := slices.Clone(p.muxes)
	p.mu.Unlock()
	for _, m := range muxes {
		_, _ = m.poll() // a failure is the mux's to tell
	}
}

func (p *Pool) countError(s WCStatus) {
	p.errs[min(s, WCGeneralErr)].Add(1)
}

// Stats returns the present counters.
func (p *Pool) Stats() PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.CompletionErrors = map[WCStatus]uint64{}
	for status := range p.errs {
		if n := p.errs[status].Load(); n > 0 {
			s.CompletionErrors[WCStatus(status)] = n
		}
	}
	s.Stray = p.stray.Load()
	return s
}

// Close destroys the idle QPs and, if none is out, the CQs. With QPs out it
// fails with ErrBusy, and with the device's error when QPs cannot be destroyed. Get
// gives no more, and Close may be called again.
func (p *Pool) Close() error {
	p.mu.Lock()
	if !p.shutdown {
		p.shutdown = true
		close(p.closed)
	}
	rest := append(p.idle, p.undead...)
	p.idle, p.undead = nil, nil
	p.mu.Unlock()
	var errs []error
	for _, q := range rest {
		errs = append(errs, p.dispose(q))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stats.InUse > 0 {
		return errors.Join(append(errs, fmt.Errorf("%w: pool with %d QPs out", ErrBusy, p.stats.InUse))...)
	}
	p.muxes = slices.DeleteFunc(p.muxes, func(m *mux) bool {
		err := fmt.Errorf("%w: CQ of %d QPs", ErrBusy, m.qps)
		if m.qps == 0 {
			err = m.close()
		}
		errs = append(errs, err)
		return err == nil
	})
	return errors.Join(errs...)
}
