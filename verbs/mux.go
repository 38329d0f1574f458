package verbs

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// defaultSpin is about what a sleep and a wake-up cost.
	defaultSpin = 50 * time.Microsecond
	// leastSpin is below which a poller stops to spin at all.
	leastSpin = 5 * time.Microsecond
)

// spinFor decides how long pollers may spin. With few CPUs, or when completions
// are made by goroutines, a spinning one takes the CPU from those that it waits
// for: with 2 CPUs the software device is then four times slower.
func spinFor(dev Device, configured time.Duration) time.Duration {
	switch {
	case configured < 0:
		return 0
	case configured > 0:
		return configured
	case dev.Provider() == "shm" || runtime.GOMAXPROCS(0) < 4:
		return 0
	}
	return defaultSpin
}

// mux is a CQ shared by many QPs, with the goroutine that takes its completions
// and hands each to the Conn of its QP.
type mux struct {
	pool *Pool
	cq   CQ
	ch   CompChannel
	stop context.CancelFunc
	done chan struct{}
	// broken is closed once the CQ is of no more use.
	broken chan struct{}

	// mu keeps the completions of a QP in order, as several goroutines may poll.
	mu     sync.Mutex
	conns  map[uint32]*Conn
	wc     []WC
	failed bool

	qps   int // guarded by pool.mu
	stray *atomic.Uint64
}

func newMux(p *Pool, depth int) (*mux, error) {
	ch, err := p.dev.CreateCompChannel()
	if err != nil {
		return nil, fmt.Errorf("completion channel: %w", err)
	}
	cq, err := p.dev.CreateCQ(depth, ch)
	if err != nil {
		ch.Close()
		return nil, fmt.Errorf("CQ of %d entries: %w", depth, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m := &mux{
		pool:   p,
		cq:     cq,
		ch:     ch,
		stop:   cancel,
		done:   make(chan struct{}),
		broken: make(chan struct{}),
		conns:  map[uint32]*Conn{},
		wc:     make([]WC, 64),
		stray:  &p.stray,
	}
	go m.run(ctx)
	return m, nil
}

// close ends the poller and frees the CQ, on which no QP may be left.
func (m *mux) close() error {
	m.stop()
	<-m.done
	if err := m.cq.Close(); err != nil {
		return err
	}
	return m.ch.Close()
}

func (m *mux) run(ctx context.Context) {
	defer close(m.done)
	most, spin := m.pool.o.Spin, time.Duration(0)
	for ctx.Err() == nil {
		n, err := m.poll()
		if err != nil {
			return
		}
		if n > 0 {
			continue
		}
		if spin > 0 {
			if n, err = m.pollFor(spin); err != nil {
				return
			}
			if n > 0 {
				spin = most
				continue
			}
			if spin /= 2; spin < leastSpin {
				spin = 0
			}
		}
		if err := m.cq.ReqNotify(); err != nil {
			m.fail(err)
			return
		}
		// What came before the CQ was armed gives no event.
		if n, err = m.poll(); err != nil {
			return
		} else if n > 0 {
			continue
		}
		asleep := time.Now()
		if _, err := m.ch.Wait(ctx); err != nil {
			if ctx.Err() == nil {
				m.fail(err)
			}
			return
		}
		if time.Since(asleep) < most {
			spin = most
		}
	}
}

// pollFor polls until there are completions or the time is over.
func (m *mux) pollFor(d time.Duration) (int, error) {
	for end := time.Now().Add(d); ; {
		n, err := m.poll()
		if n > 0 || err != nil || time.Now().After(end) {
			return n, err
		}
		runtime.Gosched()
	}
}

// poll takes what is in the CQ and delivers it. It never blocks.
func (m *mux) poll() (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed {
		return 0, ErrCQOverrun
	}
	n, err := m.cq.Poll(m.wc)
	if err != nil {
		m.failLocked(err)
		return 0, err
	}
	for _, wc := range m.wc[:n] {
		if wc.Status != WCSuccess {
			m.pool.countError(wc.Status)
		}
		c := m.conns[wc.QPN]
		if c == nil || !c.deliver(wc) {
			m.stray.Add(1)
		}
	}
	return n, nil
}

func (m *mux) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failLocked(err)
}

// failLocked gives the CQ up. Whoever waits for a completion learns it from a
// completion with WCFatalErr; the QPs can only be destroyed.
func (m *mux) failLocked(err error) {
	if m.failed {
		return
	}
	m.failed = true
	close(m.broken)
	m.pool.log.Error("verbs: completion queue lost", "device", m.pool.dev.Name(), "qps", len(m.conns), "err", err)
	for _, c := range m.conns {
		c.abandon()
	}
}

// failConn gives the QP up; false if no Conn of this CQ has it.
func (m *mux) failConn(qpn uint32) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.conns[qpn]
	if c == nil {
		return false
	}
	// The event may be about a former life of the QP.
	if state, err := c.qp.State(); err != nil || state == StateErr {
		c.fail()
		return true
	}
	return false
}

func (m *mux) isBroken() bool {
	select {
	case <-m.broken:
		return true
	default:
		return false
	}
}

func (m *mux) register(c *Conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conns[c.qp.Num()] = c
	if m.failed {
		c.abandon()
	}
}

func (m *mux) unregister(c *Conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conns[c.qp.Num()] == c {
		delete(m.conns, c.qp.Num())
	}
}
