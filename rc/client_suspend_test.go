package rc_test

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"s3rdmafs/internal/testdevice"
	"s3rdmafs/rc"
	"s3rdmafs/token"
	"s3rdmafs/verbs"
	"s3rdmafs/verbs/shm"
)

const portDown = "port down"

// stalled starts f, waits until it is held at g, and suspends c.
func stalled(t *testing.T, c *rc.Client, g *gate, f func() error) error {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- f() }()
	g.await(t)
	c.Suspend(portDown)
	select {
	case err := <-ended:
		return err
	case <-time.After(clientPatience):
		t.Fatal("the transfer did not end")
		return nil
	}
}

// wantSuspended checks that nothing is tried, and that after Resume all is well.
func wantSuspended(t *testing.T, d *duo, c *rc.Client) {
	t.Helper()
	if ok, reason := c.EligibleGet(0, 1000); ok || reason != portDown {
		t.Errorf("eligible: %v, %q", ok, reason)
	}
	if s := c.Stats(); s.Usable || s.Reason != portDown {
		t.Errorf("usable: %v, %q", s.Usable, s.Reason)
	}
	before := d.count(token.PathPrepare) + d.count(token.PathNext)
	err := d.put(c, "more", 1000)
	if e := wantError(t, err, rc.ActionHTTP, rc.PhasePrepare); !errors.Is(e, rc.ErrNotEligible) || !strings.Contains(e.Error(), portDown) {
		t.Errorf("error %v", e)
	}
	if n := d.count(token.PathPrepare) + d.count(token.PathNext); n != before {
		t.Errorf("%d requests were sent", n-before)
	}
	c.Resume()
	if err := d.put(c, "more", 1000); err != nil {
		t.Errorf("after Resume: %v", err)
	}
}

func TestSuspendEndsGet(t *testing.T) {
	testdevice.SoftwareOnly(t)
	for name, tune := range map[string]func(*rc.ClientOptions){"per transfer": noKeep, "keep": nil} {
		t.Run(name, func(t *testing.T) {
			g := newGate()
			var armed atomic.Bool
			d := newDuo(t, duoOptions{theirs: &shm.Faults{Hook: func(p shm.Point, _ shm.Write) shm.Verdict {
				if p == shm.PointSend && armed.Load() {
					g.hold()
				}
				return shm.Verdict{}
			}}})
			defer g.release()
			c := d.client(tune)
			d.warm(c)
			data := random(100_000)
			d.objects.put("/b/k", data)
			armed.Store(true)
			err := stalled(t, c, g, func() error { return d.get(c, "k", len(data)) })
			plant(d.seg.Buf[:len(data)])
			e := wantError(t, err, rc.ActionHTTP, rc.PhaseData)
			if !errors.Is(e, rc.ErrSuspended) || !strings.Contains(e.Error(), portDown) {
				t.Errorf("error %v", e)
			}
			armed.Store(false)
			g.release()
			wantSuspended(t, d, c)
			checkCanary(t, d.seg.Buf[1000:len(data)])
		})
	}
}

// A PUT whose data the server has may have been stored; one that knows that the
// data is there waits for the answer, which does not come by the port.
func TestSuspendEndsPut(t *testing.T) {
	g := newGate()
	d := newDuo(t, duoOptions{})
	defer g.release()
	var armed atomic.Bool
	armed.Store(true)
	d.objects.storing = func() error {
		if armed.Swap(false) {
			g.hold()
		}
		return nil
	}
	c := d.client(nil)
	d.warm(c)
	ended := make(chan error, 1)
	go func() { ended <- d.put(c, "k", 100_000) }()
	g.await(t)
	c.Suspend(portDown)
	g.release()
	err := <-ended
	// Of the write's acknowledgement and the port the one may be seen first.
	var e *rc.Error
	if err != nil && (!errors.As(err, &e) || e.Action != rc.ActionUnknown || !errors.Is(err, rc.ErrSuspended)) {
		t.Errorf("error %v, want one that leaves it open whether the object is stored", err)
	}
	if _, ok := d.objects.get("/b/k"); err == nil && !ok {
		t.Error("not stored")
	}
	eventually(t, "no kept session", func() bool { return c.Stats().Kept == 0 })
	wantSuspended(t, d, c)
}

// A kept session whose transfer outlives the change of the GID ends with it.
func TestSetGIDDuringTransfer(t *testing.T) {
	g := newGate()
	d := newDuo(t, duoOptions{})
	defer g.release()
	var armed atomic.Bool
	d.objects.opened = func() error {
		if armed.Swap(false) {
			g.hold()
		}
		return nil
	}
	c := d.client(nil)
	d.warm(c)
	d.objects.put("/b/k", random(1000))
	armed.Store(true)
	ended := make(chan error, 1)
	go func() { ended <- d.get(c, "k", 1000) }()
	g.await(t)
	other := verbs.GIDEntry{Index: d.own.gid.Index + 7, GID: verbs.GID{0: 0xfe, 1: 0x80, 15: 10}, Type: verbs.GIDRoCEv2}
	c.SetGID(other.Index, other.GID, []verbs.GIDEntry{other})
	g.release()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if s := c.Stats(); s.Kept != 0 {
		t.Errorf("%d sessions from the old GID are kept", s.Kept)
	}
}

func TestSuspendEndsPrepare(t *testing.T) {
	g := newGate()
	d := newDuo(t, duoOptions{})
	defer g.release()
	var armed atomic.Bool
	armed.Store(true)
	d.intercept = func(_ http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		if r.URL.Path == token.PathPrepare && armed.Swap(false) {
			g.hold()
		}
		return false
	}
	c := d.client(noKeep)
	err := stalled(t, c, g, func() error { return d.put(c, "k", 1000) })
	if e := wantError(t, err, rc.ActionHTTP, rc.PhasePrepare); !errors.Is(e, rc.ErrSuspended) {
		t.Errorf("error %v", e)
	}
	g.release()
	wantSuspended(t, d, c)
}

// Kept sessions do not outlive the port.
func TestSuspendEndsIdleSessions(t *testing.T) {
	d := newDuo(t, duoOptions{})
	c := d.client(nil)
	d.warm(c)
	if err := d.put(c, "k", 1000); err != nil {
		t.Fatal(err)
	}
	if s := c.Stats(); s.Idle != 1 {
		t.Fatalf("%d idle sessions", s.Idle)
	}
	c.Suspend(portDown)
	eventually(t, "no kept session", func() bool { return c.Stats().Kept == 0 && d.count(token.PathCancel) == 1 })
	wantSuspended(t, d, c)
}

// What was held against the endpoint may have been the port's fault.
func TestResumeTriesAgain(t *testing.T) {
	d := newDuo(t, duoOptions{})
	refuse := true
	d.intercept = func(w http.ResponseWriter, _ *http.Request, _ http.Handler) bool {
		if refuse {
			w.WriteHeader(http.StatusInternalServerError)
		}
		return refuse
	}
	c := d.client(noKeep)
	wantError(t, d.put(c, "k", 1000), rc.ActionHTTP, rc.PhasePrepare)
	if ok, _ := c.EligibleGet(0, 1000); ok {
		t.Fatal("the outage is not remembered")
	}
	refuse = false
	c.Resume() // of what was not suspended
	if ok, _ := c.EligibleGet(0, 1000); ok {
		t.Error("Resume without Suspend makes an endpoint usable")
	}
	c.Suspend(portDown)
	c.Resume()
	if err := d.put(c, "k", 1000); err != nil {
		t.Errorf("after Resume: %v", err)
	}
}

func TestSetGID(t *testing.T) {
	d := newDuo(t, duoOptions{})
	var told atomic.Value
	d.intercept = func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		if r.URL.Path == token.PathPrepare && token.CheckProtocol(r.Header) {
			tok, err := token.ParseRequest(r.Header.Get(token.HeaderToken))
			if err != nil {
				t.Error(err)
			}
			told.Store(verbs.GID(tok.GID))
		}
		return false
	}
	c := d.client(nil)
	d.warm(c)
	if err := d.put(c, "k", 1000); err != nil {
		t.Fatal(err)
	}
	own := d.own.gid
	other := verbs.GIDEntry{Index: own.Index + 7, GID: verbs.GID{0: 0xfe, 1: 0x80, 15: 10}, Type: verbs.GIDRoCEv2}
	c.SetGID(other.Index, other.GID, []verbs.GIDEntry{own, other})
	if c.Stats().Kept != 1 || told.Load() != own.GID {
		t.Error("an own GID that is still there was given up")
	}
	c.SetGID(other.Index, other.GID, []verbs.GIDEntry{other})
	eventually(t, "no session from the old GID", func() bool { return c.Stats().Kept == 0 })
	err := d.put(c, "k", 1000)
	if told.Load() != other.GID || !errors.Is(err, rc.ErrGIDFamily) {
		t.Errorf("told %v, error %v", told.Load(), err)
	}
}

func TestServerSuspend(t *testing.T) {
	testdevice.SoftwareOnly(t)
	g := newGate()
	var armed atomic.Bool
	e := startServer(t, serverConfig{server: &shm.Faults{Hook: func(p shm.Point, _ shm.Write) shm.Verdict {
		if p == shm.PointSend && armed.Load() {
			g.hold()
		}
		return shm.Verdict{}
	}}})
	defer g.release()
	e.objects.put("/b/k", random(10_000))
	waits := e.open(rc.OpPut, "/b/waits", 1000)
	runs := e.open(rc.OpGet, "/b/k", 10_000)
	runs.receive()
	armed.Store(true)
	answer := e.start(token.PathReady, runs.ready().Header())
	g.await(t)

	e.srv.Suspend(portDown)
	e.expect("transfer that runs", answer.wait(), http.StatusServiceUnavailable, "RdmaServiceUnavailable")
	e.expect("session that waits", e.must(token.PathReady, waits.ready().Header()), http.StatusNotFound, "NoSuchRdmaSession")
	p := e.newPeer(1000)
	req := p.request(rc.OpPut, "/b/new", 1000)
	e.expect("new session", e.must(token.PathPrepare, req.Header()), http.StatusServiceUnavailable, "RdmaServiceUnavailable")
	armed.Store(false)
	g.release()
	e.gone()

	e.srv.Resume()
	e.put("/b/after", random(1000))

	other := verbs.GID{0: 0xfe, 1: 0x80, 15: 10}
	e.srv.SetGID(3, other)
	a := e.must(token.PathPrepare, req.Header())
	tok, err := token.ParseReply(a.header.Get(token.HeaderReply))
	if err != nil || verbs.GID(tok.GID) != other {
		t.Errorf("%v: told GID %v, %v", a, verbs.GID(tok.GID), err)
	}
}

// The limit of memory regions makes idle buffers go, and then refuses.
func TestServerStagingMRs(t *testing.T) {
	e := startServer(t, serverConfig{edit: func(o *rc.ServerOptions) { o.StagingMRs, o.Linger = 2, time.Nanosecond }})
	for _, n := range []int{1000, 100_000, 200_000, 400_000} { // a size class each
		e.put("/b/k", random(n))
		e.gone()
	}
	e.open(rc.OpPut, "/b/k", 1000)
	e.open(rc.OpPut, "/b/k", 1000)
	p := e.newPeer(1000)
	e.expect("third region in use", e.must(token.PathPrepare, p.request(rc.OpPut, "/b/k", 1000).Header()), http.StatusServiceUnavailable, "SlowDown")
}
