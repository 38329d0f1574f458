package verbs_test

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"s3rdmafs/verbs"
	"s3rdmafs/verbs/shm"
)

const patience = 20 * time.Second

// watched collects what a Watch tells; "" stands for up.
type watched struct {
	told  chan string
	gids  chan error // answers of the next GIDChange
	asked chan struct{}
}

func watch(t *testing.T, f *fixture) *watched {
	t.Helper()
	w := &watched{told: make(chan string, 10), gids: make(chan error, 10), asked: make(chan struct{}, 20)}
	watch := verbs.NewWatch(f.dev, verbs.WatchOptions{
		Pool: f.pool,
		Down: func(reason string) { w.told <- reason },
		Up:   func() { w.told <- "" },
		GIDChange: func() error {
			w.asked <- struct{}{}
			select {
			case err := <-w.gids:
				return err
			default:
				return nil
			}
		},
		Logger: slog.New(slog.DiscardHandler),
	})
	t.Cleanup(watch.Close)
	return w
}

func (w *watched) want(t *testing.T, reason string) {
	t.Helper()
	select {
	case got := <-w.told:
		if got != reason {
			t.Fatalf("told %q, want %q", got, reason)
		}
	case <-time.After(patience):
		t.Fatalf("not told %q", reason)
	}
}

func TestWatchPort(t *testing.T) {
	f := newFixture(t, verbs.PoolOptions{}, nil)
	dev := f.dev.(*shm.Device)
	dev.SetPortUp(false) // before there is a reader, too
	w := watch(t, f)
	w.want(t, "port down")
	dev.SetPortUp(true)
	w.want(t, "")

	w.gids <- errors.New("table is empty")
	dev.Emit(verbs.Event{Type: verbs.EventGIDChange, Port: 1})
	w.want(t, "no usable GID: table is empty")
	dev.SetPortUp(false)
	w.want(t, "port down")
	// The port's return asks for the GIDs again.
	w.gids <- errors.New("still empty")
	dev.SetPortUp(true)
	w.want(t, "no usable GID: still empty")
	dev.Emit(verbs.Event{Type: verbs.EventGIDChange, Port: 1})
	w.want(t, "")

	// Another port's events are not about this one.
	dev.Emit(verbs.Event{Type: verbs.EventPortError, Port: 2})
	dev.Emit(verbs.Event{Type: verbs.EventDeviceFatal})
	w.want(t, "device failed")
	dev.SetPortUp(false)
	dev.SetPortUp(true)
	for len(w.asked) > 0 {
		<-w.asked
	}
	for range 2 { // when the second is asked, what the first brought about was told
		dev.Emit(verbs.Event{Type: verbs.EventGIDChange, Port: 1})
		<-w.asked
	}
	if n := len(w.told); n > 0 {
		t.Errorf("told %q after the device failed for good", <-w.told)
	}
}

// A QP with a fatal event ends what waits for it and is not used again.
func TestWatchQPFatal(t *testing.T) {
	f := newFixture(t, verbs.PoolOptions{MaxQPs: 2}, nil)
	dev := f.dev.(*shm.Device)
	watch(t, f)
	a, b := f.get(t), f.get(t)
	f.connect(t, a, b)
	if err := a.PostRecv(verbs.RecvWR{ID: 7}); err != nil {
		t.Fatal(err)
	}
	if err := dev.FailQP(a.QPN()); err != nil {
		t.Fatal(err)
	}
	if wc := take(t, a); wc.ID != 7 || wc.Status == verbs.WCSuccess {
		t.Errorf("completion %+v", wc)
	}
	// The event may come after the completion.
	waitFor(t, func() bool { return errors.Is(a.PostRecv(verbs.RecvWR{ID: 8}), verbs.ErrClosed) })
	for _, c := range []*verbs.Conn{a, b} {
		if err := c.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if s := f.pool.Stats(); s.Destroyed != 1 || s.InUse != 0 || s.Open != 1 {
		t.Errorf("%+v, want one QP destroyed and one kept", s)
	}
	// A late event about a QP that was recycled since does no harm.
	dev.Emit(verbs.Event{Type: verbs.EventQPFatal, QPN: b.QPN()})
	if f.pool.FailQP(b.QPN()) {
		t.Error("a QP in INIT was given up")
	}
	c := f.get(t)
	if c.QPN() != b.QPN() {
		t.Errorf("QP %d, want the recycled %d", c.QPN(), b.QPN())
	}
	if err := c.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// waitFor polls until ok, which must come to pass without further ado.
func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("did not come to pass")
		}
	}
}

// smallDevice is a device with narrow limits.
type smallDevice struct {
	verbs.Device
	limits verbs.DeviceAttr
}

func (d smallDevice) Attr() verbs.DeviceAttr { return d.limits }

func TestPoolFitsDevice(t *testing.T) {
	roomy := verbs.DeviceAttr{MaxQP: 1000, MaxQPWR: 1000, MaxSGE: 8, MaxCQ: 100, MaxCQE: 100_000}
	limit := func(change func(*verbs.DeviceAttr)) verbs.DeviceAttr {
		a := roomy
		change(&a)
		return a
	}
	two := verbs.QPCap{MaxSendWR: 2, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1}
	for _, c := range []struct {
		name  string
		attr  verbs.DeviceAttr
		want  verbs.PoolLimits
		fails bool
	}{
		{"room for all", roomy, verbs.PoolLimits{MaxQPs: 64, CQs: 1, CQDepth: 320, Cap: two}, false},
		{"QPs", limit(func(a *verbs.DeviceAttr) { a.MaxQP = 10 }), verbs.PoolLimits{MaxQPs: 10, CQs: 1, CQDepth: 50, Cap: two}, false},
		{"CQ depth", limit(func(a *verbs.DeviceAttr) { a.MaxCQE = 100 }), verbs.PoolLimits{MaxQPs: 64, CQs: 4, CQDepth: 80, Cap: two}, false},
		{"CQ depth and CQs", limit(func(a *verbs.DeviceAttr) { a.MaxCQE, a.MaxCQ = 100, 2 }), verbs.PoolLimits{MaxQPs: 40, CQs: 2, CQDepth: 100, Cap: two}, false},
		{"work requests", limit(func(a *verbs.DeviceAttr) { a.MaxQPWR = 2 }),
			verbs.PoolLimits{MaxQPs: 64, CQs: 1, CQDepth: 64 * 4, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1}}, false},
		{"no CQ fits a QP", limit(func(a *verbs.DeviceAttr) { a.MaxCQE = 4 }), verbs.PoolLimits{}, true},
		{"no QPs", limit(func(a *verbs.DeviceAttr) { a.MaxQP = 0 }), verbs.PoolLimits{}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, verbs.PoolOptions{}, nil)
			p, err := verbs.NewPool(smallDevice{f.dev, c.attr}, verbs.PoolOptions{PD: f.pd, MaxQPs: 64, CQs: 1, Logger: slog.New(slog.DiscardHandler)})
			if c.fails {
				if !errors.Is(err, verbs.ErrNoResource) {
					t.Fatalf("error %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer mustClose(t, p)
			if got := p.Limits(); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}

func TestParseMTU(t *testing.T) {
	for m := verbs.MTU256; m <= verbs.MTU4096; m++ {
		if got, ok := verbs.ParseMTU(m.Bytes()); !ok || got != m {
			t.Errorf("%d bytes: %v, %v", m.Bytes(), got, ok)
		}
	}
	for _, n := range []int{0, -1, 128, 1500, 8192} {
		if got, ok := verbs.ParseMTU(n); ok {
			t.Errorf("%d bytes: %v", n, got)
		}
	}
}
