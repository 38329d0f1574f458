package verbs_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"s3rdmafs/verbs"
	"s3rdmafs/verbs/shm"
)

type fixture struct {
	dev  verbs.Device
	pd   verbs.PD
	pool *verbs.Pool
	gid  verbs.GID
}

// newFixture opens a software device with a pool. wrap may put something
// between the pool and the PD.
func newFixture(t testing.TB, o verbs.PoolOptions, wrap func(verbs.PD) verbs.PD) *fixture {
	t.Helper()
	f := &fixture{}
	var err error
	if f.dev, err = shm.Open(shm.Options{Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mustClose(t, f.dev) })
	if f.pd, err = f.dev.AllocPD(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mustClose(t, f.pd) })
	gids, err := f.dev.GIDs(1)
	if err != nil {
		t.Fatal(err)
	}
	f.gid = gids[0].GID
	o.PD, o.Access, o.Logger = f.pd, verbs.AccessRemoteWrite, slog.New(slog.DiscardHandler)
	if wrap != nil {
		o.PD = wrap(f.pd)
	}
	if f.pool, err = verbs.NewPool(f.dev, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mustClose(t, f.pool) })
	return f
}

func mustClose(t testing.TB, c interface{ Close() error }) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Errorf("close %T: %v", c, err)
	}
}

func (f *fixture) get(t testing.TB) *verbs.Conn {
	t.Helper()
	c, err := f.pool.Get(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// connect connects two QPs of the same device.
func (f *fixture) connect(t testing.TB, a, b *verbs.Conn) {
	t.Helper()
	for _, c := range [][2]*verbs.Conn{{a, b}, {b, a}} {
		if err := c[0].Connect(verbs.ConnectAttr{DestQPN: c[1].QPN(), RQPSN: c[1].PSN(), DGID: f.gid, MTU: verbs.MTU4096}); err != nil {
			t.Fatal(err)
		}
	}
}

func take(t testing.TB, c *verbs.Conn) verbs.WC {
	t.Helper()
	select {
	case wc := <-c.Completions():
		return wc
	case <-time.After(20 * time.Second):
		t.Fatal("no completion")
		return verbs.WC{}
	}
}

func recv(t testing.TB, c *verbs.Conn, id uint64) {
	t.Helper()
	if err := c.PostRecv(verbs.RecvWR{ID: id}); err != nil {
		t.Fatal(err)
	}
}

// TestPoolOverrun breaks the only CQ: whoever waits is told, Release still
// gives its guarantee, and the pool goes on with a new CQ.
func TestPoolOverrun(t *testing.T) {
	f := newFixture(t, verbs.PoolOptions{CQs: 1, CQDepth: 1, MaxQPs: 4}, nil)
	a, idle := f.get(t), f.get(t)
	if err := idle.Release(context.Background()); err != nil {
		t.Fatal(err)
	}
	recv(t, a, 1)
	recv(t, a, 2)
	if err := a.QP().Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState); err != nil {
		t.Fatal(err)
	}
	if err := a.Release(context.Background()); err != nil {
		t.Fatal(err)
	}
	// Told by the loss of the CQ, or by the poller that was quick enough to make
	// room for the second completion.
	for id := range uint64(2) {
		if wc := take(t, a); wc.ID != id+1 || wc.Status == verbs.WCSuccess {
			t.Errorf("completion of %d: %v", wc.ID, wc.Status)
		}
	}
	b, c := f.get(t), f.get(t)
	f.connect(t, b, c)
	recv(t, c, 3)
	if err := b.PostSend(verbs.SendWR{Opcode: verbs.OpWriteWithImm, Imm: 9}); err != nil {
		t.Fatal(err)
	}
	if wc := take(t, c); wc.Status != verbs.WCSuccess || wc.Imm != 9 {
		t.Errorf("completion %+v", wc)
	}
	for _, x := range []*verbs.Conn{b, c} {
		if err := x.Release(context.Background()); err != nil {
			t.Error(err)
		}
	}
	if s := f.pool.Stats(); s.InUse != 0 {
		t.Errorf("stats %+v", s)
	}
}

// TestPoolTellsOfLostCQ: a Conn that waits for a completion learns that none
// will come.
func TestPoolTellsOfLostCQ(t *testing.T) {
	f := newFixture(t, verbs.PoolOptions{CQs: 1, CQDepth: 2, MaxQPs: 2,
		Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 64, MaxSendSGE: 1, MaxRecvSGE: 1}}, nil)
	waiting, flood := f.get(t), f.get(t)
	recv(t, waiting, 7)
	for i := range uint64(64) {
		recv(t, flood, i)
	}
	// All are flushed at once, faster than anybody polls.
	if err := flood.QP().Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState); err != nil {
		t.Fatal(err)
	}
	if wc := take(t, waiting); wc.ID != 7 || wc.Status != verbs.WCFatalErr {
		t.Errorf("completion of %d: %v", wc.ID, wc.Status)
	}
	if err := waiting.PostRecv(verbs.RecvWR{}); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("receive on a lost CQ: %v", err)
	}
	for _, c := range []*verbs.Conn{waiting, flood} {
		if err := c.Release(context.Background()); err != nil {
			t.Error(err)
		}
	}
	if s := f.pool.Stats(); s.Open != 0 || s.Destroyed != 2 {
		t.Errorf("stats %+v", s)
	}
}

// TestPoolStray: completions that no Conn asked for are counted and dropped.
func TestPoolStray(t *testing.T) {
	f := newFixture(t, verbs.PoolOptions{}, nil)
	a := f.get(t)
	if err := a.QP().PostRecv(verbs.RecvWR{ID: 5}); err != nil {
		t.Fatal(err)
	}
	recv(t, a, 6)
	if err := a.Drain(context.Background()); err != nil {
		t.Fatal(err)
	}
	if wc := take(t, a); wc.ID != 6 {
		t.Errorf("completion of %d", wc.ID)
	}
	if err := a.Release(context.Background()); err != nil {
		t.Fatal(err)
	}
	if s := f.pool.Stats(); s.Stray != 1 {
		t.Errorf("stats %+v", s)
	}
}

// brokenPD makes QPs that cannot be taken back while broken is set.
type brokenPD struct {
	verbs.PD
	broken *atomic.Bool
}

type brokenQP struct {
	verbs.QP
	broken *atomic.Bool
}

var errBroken = errors.New("device gone")

func (p brokenPD) CreateQP(i verbs.QPInitAttr) (verbs.QP, error) {
	q, err := p.PD.CreateQP(i)
	return brokenQP{q, p.broken}, err
}

func (q brokenQP) Modify(a verbs.QPAttr, m verbs.QPAttrMask) error {
	if q.broken.Load() {
		return errBroken
	}
	return q.QP.Modify(a, m)
}

func (q brokenQP) Close() error {
	if q.broken.Load() {
		return errBroken
	}
	return q.QP.Close()
}

// TestPoolUnsafe: when not even destroying works, the caller is told so, the QP
// stays out, and another attempt may succeed.
func TestPoolUnsafe(t *testing.T) {
	var broken atomic.Bool
	f := newFixture(t, verbs.PoolOptions{MaxQPs: 2}, func(pd verbs.PD) verbs.PD { return brokenPD{pd, &broken} })
	a, b := f.get(t), f.get(t)
	f.connect(t, a, b)
	recv(t, a, 3)
	broken.Store(true)
	for range 2 {
		if err := a.Release(context.Background()); !errors.Is(err, verbs.ErrUnsafe) || !errors.Is(err, errBroken) {
			t.Fatalf("release: %v", err)
		}
	}
	if s := f.pool.Stats(); s.InUse != 2 {
		t.Errorf("stats %+v", s)
	}
	broken.Store(false)
	for _, c := range []*verbs.Conn{a, b} {
		if err := c.Release(context.Background()); err != nil {
			t.Error(err)
		}
	}
	if wc := take(t, a); wc.ID != 3 || wc.Status != verbs.WCWRFlushErr {
		t.Errorf("completion of %d: %v", wc.ID, wc.Status)
	}
}

// TestPoolDestroysStubborn: a QP that cannot be moved to ERR is destroyed, and
// its work requests come back all the same.
func TestPoolDestroysStubborn(t *testing.T) {
	var stubborn atomic.Bool
	f := newFixture(t, verbs.PoolOptions{MaxQPs: 2}, func(pd verbs.PD) verbs.PD { return stubbornPD{pd, &stubborn} })
	a, b := f.get(t), f.get(t)
	f.connect(t, a, b)
	recv(t, a, 3)
	stubborn.Store(true)
	if err := a.Release(context.Background()); err != nil {
		t.Fatal(err)
	}
	if wc := take(t, a); wc.ID != 3 || wc.Status != verbs.WCWRFlushErr {
		t.Errorf("completion of %d: %v", wc.ID, wc.Status)
	}
	stubborn.Store(false)
	if err := b.Release(context.Background()); err != nil {
		t.Error(err)
	}
	if s := f.pool.Stats(); s.Destroyed != 1 || s.InUse != 0 || s.Open != 1 {
		t.Errorf("stats %+v", s)
	}
}

type stubbornPD struct {
	verbs.PD
	stubborn *atomic.Bool
}

type stubbornQP struct {
	verbs.QP
	stubborn *atomic.Bool
}

func (p stubbornPD) CreateQP(i verbs.QPInitAttr) (verbs.QP, error) {
	q, err := p.PD.CreateQP(i)
	return stubbornQP{q, p.stubborn}, err
}

func (q stubbornQP) Modify(a verbs.QPAttr, m verbs.QPAttrMask) error {
	if q.stubborn.Load() {
		return errBroken
	}
	return q.QP.Modify(a, m)
}

// TestPoolKeepsNoIdle: with a negative IdleQPs every QP is new.
func TestPoolKeepsNoIdle(t *testing.T) {
	f := newFixture(t, verbs.PoolOptions{IdleQPs: -1}, nil)
	for range 3 {
		if err := f.get(t).Release(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if s := f.pool.Stats(); s.Created != 3 || s.Destroyed != 3 || s.Open != 0 {
		t.Errorf("stats %+v", s)
	}
}

// BenchmarkPool is one life of a pair of QPs: two Gets, both connected, one
// WRITE WITH IMM, two Releases.
func BenchmarkPool(b *testing.B) {
	f := newFixture(b, verbs.PoolOptions{}, nil)
	for b.Loop() {
		x, y := f.get(b), f.get(b)
		f.connect(b, x, y)
		recv(b, y, 1)
		if err := x.PostSend(verbs.SendWR{Opcode: verbs.OpWriteWithImm, Signaled: true}); err != nil {
			b.Fatal(err)
		}
		take(b, y)
		take(b, x)
		for _, c := range []*verbs.Conn{x, y} {
			if err := c.Release(context.Background()); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// TestPoolKeepsWhatItCannotDestroy: idle QPs that cannot be destroyed count as
// open, are not handed out, and go when the device lets them.
func TestPoolKeepsWhatItCannotDestroy(t *testing.T) {
	var broken atomic.Bool
	wrap := func(pd verbs.PD) verbs.PD { return brokenPD{pd, &broken} }
	t.Run("at Close", func(t *testing.T) {
		f := newFixture(t, verbs.PoolOptions{MaxQPs: 2}, wrap)
		for _, c := range []*verbs.Conn{f.get(t), f.get(t)} {
			if err := c.Release(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		broken.Store(true)
		for range 2 {
			if err := f.pool.Close(); !errors.Is(err, errBroken) {
				t.Errorf("close: %v", err)
			}
		}
		broken.Store(false)
		if err := f.pool.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if s := f.pool.Stats(); s.Open != 0 || s.Destroyed != 2 {
			t.Errorf("stats %+v", s)
		}
	})
	t.Run("failed by the device", func(t *testing.T) {
		f := newFixture(t, verbs.PoolOptions{MaxQPs: 1}, wrap)
		c := f.get(t)
		qpn := c.QPN()
		if err := c.Release(context.Background()); err != nil {
			t.Fatal(err)
		}
		broken.Store(true)
		defer broken.Store(false)
		if err := c.QP().(brokenQP).QP.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState); err != nil {
			t.Fatal(err)
		}
		if !f.pool.FailQP(qpn) {
			t.Error("the pool does not know its idle QP")
		}
		// No second QP beside the one that is still there.
		for range 2 {
			if _, err := f.pool.Get(context.Background()); !errors.Is(err, errBroken) {
				t.Errorf("get: %v", err)
			}
		}
		broken.Store(false)
		if c = f.get(t); c.QPN() == qpn {
			t.Error("the failed QP was handed out")
		}
		if err := c.Release(context.Background()); err != nil {
			t.Error(err)
		}
		if s := f.pool.Stats(); s.Open != 1 || s.Destroyed != 1 || s.Created != 2 {
			t.Errorf("stats %+v", s)
		}
	})
	t.Run("new", func(t *testing.T) {
		f := newFixture(t, verbs.PoolOptions{MaxQPs: 1}, wrap)
		broken.Store(true)
		defer broken.Store(false)
		for range 2 {
			if _, err := f.pool.Get(context.Background()); !errors.Is(err, errBroken) {
				t.Errorf("get: %v", err)
			}
		}
		if s := f.pool.Stats(); s.Open != 1 || s.InUse != 0 {
			t.Errorf("stats %+v", s)
		}
	})
	t.Run("broken CQ", func(t *testing.T) {
		f := newFixture(t, verbs.PoolOptions{CQs: 1, CQDepth: 2, MaxQPs: 3,
			Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 64, MaxSendSGE: 1, MaxRecvSGE: 1}}, wrap)
		waiting, flood, idle := f.get(t), f.get(t), f.get(t)
		if err := idle.Release(context.Background()); err != nil {
			t.Fatal(err)
		}
		recv(t, waiting, 7)
		for i := range uint64(64) {
			recv(t, flood, i)
		}
		if err := flood.QP().Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState); err != nil {
			t.Fatal(err)
		}
		if wc := take(t, waiting); wc.Status != verbs.WCFatalErr {
			t.Fatalf("completion %+v", wc)
		}
		for _, c := range []*verbs.Conn{waiting, flood} {
			if err := c.Release(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		broken.Store(true)
		defer broken.Store(false)
		// That the idle one cannot be destroyed now is found out here.
		if _, err := f.pool.Get(context.Background()); !errors.Is(err, errBroken) {
			t.Errorf("get: %v", err)
		}
		broken.Store(false)
		if err := f.pool.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if s := f.pool.Stats(); s.Open != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}
