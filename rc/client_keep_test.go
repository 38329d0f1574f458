package rc_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"s3rdmafs/rc"
	"s3rdmafs/rc/rctest"
	"s3rdmafs/token"
	"s3rdmafs/verbs"
	"s3rdmafs/verbs/shm"
)

func TestKeptSessionServesManyTransfers(t *testing.T) {
	d := newDuo(t, duoOptions{})
	c := d.client(nil)
	d.warm(c)
	const rounds = 20
	for i := range rounds {
		n := 1000 + i
		data := random(n)
		copy(d.seg.Buf, data)
		if err := d.put(c, "k", n); err != nil {
			t.Fatal(err)
		}
		plant(d.seg.Buf[:n])
		if err := d.get(c, "k", n); err != nil {
			t.Fatal(err)
		}
		wantBytes(t, "data", d.seg.Buf[:n], data)
	}
	if n := d.count(token.PathPrepare); n != 2 { // the probe, and one
		t.Errorf("%d PREPAREs", n)
	}
	if n := d.count(token.PathReady) + d.count(token.PathCancel); n != 0 {
		t.Errorf("%d READYs and CANCELs", n)
	}
	cookies := make(map[string]bool)
	for i, h := range d.requests {
		if h.Get(token.HeaderSeq) != fmt.Sprint(i+1) {
			t.Errorf("request %d has sequence number %s", i, h.Get(token.HeaderSeq))
		}
		cookies[h.Get(token.HeaderCookie)] = true
	}
	if len(d.requests) != 2*rounds || len(cookies) != 2*rounds {
		t.Errorf("%d requests with %d cookies", len(d.requests), len(cookies))
	}
	if s := c.Stats(); s.KeptOpened != 1 || s.KeptTransfers != 2*rounds || s.Kept != 1 || s.Idle != 1 {
		t.Errorf("stats %+v", s)
	}
	c.Close()
	if n := d.count(token.PathCancel); n != 1 {
		t.Errorf("%d CANCELs at the end", n)
	}
	if s := d.server.Stats(); s.Sessions != 0 {
		t.Errorf("the server keeps %d sessions", s.Sessions)
	}
}

func TestKeptSessionsByCapacity(t *testing.T) {
	d := newDuo(t, duoOptions{})
	c := d.client(nil)
	d.warm(c)
	for _, n := range []int{1000, 1 << 20, 3 << 20, 1000, 4 << 20, 5 << 20, 2 << 20, 500_000} {
		if err := d.put(c, "k", n); err != nil {
			t.Fatal(err)
		}
	}
	// 1 MiB for the small ones, 4 MiB, 8 MiB.
	if s := c.Stats(); s.KeptOpened != 3 || s.Retries != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestKeptSessionsAreBounded(t *testing.T) {
	d := newDuo(t, duoOptions{})
	c := d.client(func(o *rc.ClientOptions) { o.Sessions = 3 })
	d.warm(c)
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			seg := d.seg.Slice(i<<20, 1<<20)
			for j := range 6 {
				n := 1000 << (j % 4 * 3)
				key := fmt.Sprintf("k%d", i)
				copy(seg.Buf, random(n))
				if _, err := c.Put(t.Context(), rc.PutRequest{Bucket: "b", Key: key, Src: seg.Slice(0, n)}); err != nil {
					t.Error(err)
				}
				if s := d.server.Stats(); s.Sessions > 3 {
					t.Errorf("%d sessions at the server", s.Sessions)
				}
				clear(seg.Buf)
				if _, err := c.Get(t.Context(), rc.GetRequest{Bucket: "b", Key: key, Dst: seg.Slice(0, n)}); err != nil {
					t.Error(err)
				}
				wantBytes(t, key, seg.Buf[:n], random(n))
			}
		})
	}
	wg.Wait()
	// Larger ones want other capacities than what is idle.
	for _, n := range []int{2 << 20, 4 << 20, 8 << 20, 1000} {
		if err := d.put(c, "k", n); err != nil {
			t.Fatal(err)
		}
		if s := c.Stats(); s.Kept > 3 {
			t.Errorf("%d kept sessions", s.Kept)
		}
	}
}

func TestKeptSessionEndsWhenIdle(t *testing.T) {
	d := newDuo(t, duoOptions{})
	c := d.client(func(o *rc.ClientOptions) { o.KeepIdle = 20 * time.Millisecond })
	d.warm(c)
	if err := d.put(c, "k", 1000); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the idle session ended", func() bool { return c.Stats().Kept == 0 && d.server.Stats().Sessions == 0 })
	if err := d.put(c, "k", 1000); err != nil {
		t.Fatal(err)
	}
	if s := c.Stats(); s.KeptOpened != 2 || s.Retries != 0 {
		t.Errorf("stats %+v", s)
	}
}

// TestKeptSessionIsGone: the server ended it, so the transfer is done in a fresh
// one and nobody notices.
func TestKeptSessionIsGone(t *testing.T) {
	d := newDuo(t, duoOptions{})
	c := d.client(nil)
	d.warm(c)
	d.objects.put("/b/k", random(1000))
	for i, op := range []rc.Op{rc.OpGet, rc.OpPut} {
		if err := d.get(c, "k", 1000); err != nil {
			t.Fatal(err)
		}
		d.startServer(nil)
		var err error
		if op == rc.OpGet {
			err = d.get(c, "k", 1000)
		} else {
			err = d.put(c, "p", 1000)
		}
		if err != nil {
			t.Fatalf("%s: %v", op, err)
		}
		if s := c.Stats(); s.Retries != uint64(i+1) || s.GetErrors+s.PutErrors != 0 {
			t.Errorf("%s: stats %+v", op, s)
		}
	}
	wantBytes(t, "fetched", d.seg.Buf[:1000], random(1000))
	if o, _ := d.objects.get("/b/p"); len(o.data) != 1000 {
		t.Error("not stored")
	}
	if ok, reason := c.EligibleGet(0, 1000); !ok {
		t.Errorf("the endpoint was blamed: %s", reason)
	}
}

// TestKeptFinalLost: a GET is done again, a PUT is unknown.
func TestKeptFinalLost(t *testing.T) {
	var lose atomic.Bool
	d := newDuo(t, duoOptions{})
	d.intercept = func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
		if r.URL.Path != token.PathNext || !lose.Load() {
			return false
		}
		lose.Store(false)
		next.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	}
	c := d.client(nil)
	d.warm(c)
	if err := d.put(c, "k", 1000); err != nil {
		t.Fatal(err)
	}
	lose.Store(true)
	if err := d.get(c, "k", 1000); err != nil {
		t.Errorf("GET: %v", err)
	}
	stored := 0
	d.objects.storing = func() error { stored++; return nil }
	lose.Store(true)
	err := d.put(c, "k", 1000)
	if e, ok := err.(*rc.Error); !ok || e.Action != rc.ActionUnknown || e.Status != 0 {
		t.Errorf("PUT: %v", err)
	}
	if stored != 1 {
		t.Errorf("stored %d times", stored)
	}
	if s := c.Stats(); s.Idle != 0 {
		t.Errorf("%d broken sessions are kept", s.Idle)
	}
}

// TestKeptRefusals: every answer but 200 ends the session, and the next transfer
// opens one.
func TestKeptRefusals(t *testing.T) {
	t.Parallel()
	d := newDuo(t, duoOptions{})
	c := d.client(nil)
	d.warm(c)
	denied := errors.New("")
	d.objects.authorize = func(_ rc.Principal, op rc.Op, k token.Target) error {
		if k.Key == "denied" {
			return &rc.S3Error{Status: http.StatusForbidden, Code: "AccessDenied"}
		}
		return nil
	}
	d.objects.storing = func() error {
		if denied == nil {
			return &rc.S3Error{Status: http.StatusForbidden, Code: "QuotaExceeded"}
		}
		return nil
	}
	d.objects.put("/b/k", random(1000))
	for i, c2 := range []struct {
		what   string
		run    func() error
		action rc.Action
		phase  rc.Phase
	}{
		{"no such key", func() error { return d.get(c, "none", 1000) }, rc.ActionHTTP, rc.PhaseReady},
		{"denied GET", func() error { return d.get(c, "denied", 1000) }, rc.ActionHTTP, rc.PhaseReady},
		{"past the end", func() error {
			_, err := c.Get(t.Context(), rc.GetRequest{Bucket: "b", Key: "k", Offset: 1000, Dst: d.seg.Slice(0, 1000)})
			return err
		}, rc.ActionHTTP, rc.PhaseReady},
		{"quota", func() error { denied = nil; return d.put(c, "k", 1000) }, rc.ActionFail, rc.PhaseFinal},
	} {
		if err := d.get(c, "k", 1000); err != nil {
			t.Fatal(err)
		}
		wantError(t, c2.run(), c2.action, c2.phase)
		if s := c.Stats(); s.Idle != 0 || s.KeptOpened != uint64(i+1) {
			t.Errorf("%s: stats %+v", c2.what, s)
		}
		if s := d.server.Stats(); s.Sessions != 0 {
			t.Errorf("%s: %d sessions at the server", c2.what, s.Sessions)
		}
	}
	// A PUT that is refused may have written already; it is stored nowhere.
	err := d.put(c, "denied", 1000)
	if e, ok := err.(*rc.Error); !ok || e.Status != http.StatusForbidden || e.Action == rc.ActionUnknown {
		t.Errorf("denied PUT: %v", err)
	}
	if _, ok := d.objects.get("/b/denied"); ok {
		t.Error("stored")
	}
}

// TestKeptLateWrite: the server's write of an aborted GET arrives when the
// memory belongs to somebody else and the queue pair to another transfer.
func TestKeptLateWrite(t *testing.T) {
	for _, c := range []struct {
		name   string
		point  shm.Point
		theirs bool
	}{
		{"under way", shm.PointSend, true},
		{"arrived", shm.PointReceived, false},
		{"checked", shm.PointChecked, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGate()
			defer g.release()
			var armed atomic.Bool
			f := &shm.Faults{Hook: func(p shm.Point, w shm.Write) shm.Verdict {
				if p == c.point && w.Length == failSize && armed.CompareAndSwap(true, false) {
					g.hold()
				}
				return shm.Verdict{}
			}}
			o := duoOptions{own: f, server: func(o *rc.ServerOptions) { o.ExecTimeout = time.Second }}
			if c.theirs {
				o.own, o.theirs = nil, f
			}
			d := newDuo(t, o)
			cl := d.client(nil)
			d.warm(cl)
			d.objects.put("/b/k", random(failSize))
			if err := d.get(cl, "k", failSize); err != nil {
				t.Fatal(err)
			}
			armed.Store(true)
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				g.await(t)
				cancel()
			}()
			_, err := cl.Get(ctx, rc.GetRequest{Bucket: "b", Key: "k", Dst: d.seg.Slice(0, failSize)})
			plant(d.seg.Buf)
			wantError(t, err, rc.ActionFail, rc.PhaseData)
			// The queue pair is in use again, elsewhere.
			at := d.seg.Slice(8<<20, failSize+1)
			d.objects.put("/b/other", random(failSize+1))
			if _, err := cl.Get(t.Context(), rc.GetRequest{Bucket: "b", Key: "other", Dst: at}); err != nil {
				t.Fatal(err)
			}
			g.release()
			eventually(t, "the server gave the first transfer up", func() bool { return d.server.Stats().Sessions == 1 })
			wantBytes(t, "second transfer", at.Buf, random(failSize+1))
			plant(at.Buf)
			checkCanary(t, d.seg.Buf)
		})
	}
}

// TestKeptLatePut: the data of a PUT that was given up arrives when its memory has
// other contents; neither the old session nor the next PUT may store a mix.
func TestKeptLatePut(t *testing.T) {
	g := newGate()
	defer g.release()
	var armed atomic.Bool
	d := newDuo(t, duoOptions{
		server: func(o *rc.ServerOptions) { o.ExecTimeout = time.Second },
		theirs: &shm.Faults{Hook: func(p shm.Point, w shm.Write) shm.Verdict {
			if p == shm.PointReceived && armed.CompareAndSwap(true, false) {
				g.hold()
			}
			return shm.Verdict{}
		}},
	})
	c := d.client(nil)
	d.warm(c)
	if err := d.put(c, "k", failSize); err != nil {
		t.Fatal(err)
	}
	first := random(failSize)
	copy(d.seg.Buf, first)
	armed.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		g.await(t)
		eventually(t, "NEXT arrived", func() bool { return d.count(token.PathNext) == 2 })
		cancel()
	}()
	_, err := c.Put(ctx, rc.PutRequest{Bucket: "b", Key: "first", Src: d.seg.Slice(0, failSize)})
	plant(d.seg.Buf)
	wantError(t, err, rc.ActionUnknown, rc.PhaseData)
	second := random(failSize + 1)[:failSize]
	at := d.seg.Slice(8<<20, failSize)
	copy(at.Buf, second)
	if _, err := c.Put(t.Context(), rc.PutRequest{Bucket: "b", Key: "second", Src: at}); err != nil {
		t.Fatal(err)
	}
	g.release()
	eventually(t, "the server gave the first transfer up", func() bool { return d.server.Stats().Sessions == 1 })
	if o, ok := d.objects.get("/b/first"); ok {
		wantBytes(t, "first object", o.data, first)
	}
	o, _ := d.objects.get("/b/second")
	wantBytes(t, "second object", o.data, second)
}

// TestKeptWriteFails: the adapter reports a failed write.
func TestKeptWriteFails(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		op   rc.Op
		fail verbs.WCStatus
		good bool
	}{
		// The server's write fails; the GET is done again in a fresh session.
		{"GET", rc.OpGet, verbs.WCRetryExcErr, true},
		{"PUT refused", rc.OpPut, verbs.WCRemAccessErr, true},
		{"PUT unanswered", rc.OpPut, verbs.WCRetryExcErr, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var armed atomic.Bool
			f := &shm.Faults{Hook: func(p shm.Point, w shm.Write) shm.Verdict {
				if p == shm.PointSend && armed.CompareAndSwap(true, false) {
					return shm.Verdict{Status: c.fail}
				}
				return shm.Verdict{}
			}}
			o := duoOptions{own: f, server: func(o *rc.ServerOptions) { o.ExecTimeout = 1500 * time.Millisecond }}
			if c.op == rc.OpGet {
				o.own, o.theirs = nil, f
			}
			d := newDuo(t, o)
			cl := d.client(nil)
			d.warm(cl)
			d.objects.put("/b/k", random(failSize))
			if err := d.get(cl, "k", failSize); err != nil {
				t.Fatal(err)
			}
			armed.Store(true)
			var err error
			if c.op == rc.OpGet {
				err = d.get(cl, "k", failSize)
			} else {
				err = d.put(cl, "p", failSize)
			}
			if (err == nil) != c.good {
				t.Fatalf("error %v", err)
			}
			if err != nil {
				wantError(t, err, rc.ActionUnknown, rc.PhaseData)
			}
			if armed.Load() {
				t.Error("nothing failed, so this test tests nothing")
			}
		})
	}
}

// TestKeptWrongCookieInFinal closes the session and is counted.
func TestKeptWrongCookieInFinal(t *testing.T) {
	d := newDuo(t, duoOptions{})
	var once atomic.Bool
	d.intercept = func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
		if r.URL.Path != token.PathNext || !once.CompareAndSwap(false, true) {
			return false
		}
		rec := httptest.NewRecorder()
		next.ServeHTTP(rec, r)
		for k, v := range rec.Header() {
			w.Header()[k] = v
		}
		w.Header().Set(token.HeaderCookie, "00000001")
		w.WriteHeader(rec.Code)
		return true
	}
	c := d.client(nil)
	d.warm(c)
	d.objects.put("/b/k", random(1000))
	if err := d.get(c, "k", 1000); err != nil {
		t.Fatal(err)
	}
	if s := c.Stats(); s.CookieMismatches != 1 || s.Retries != 1 || s.Gets != 1 {
		t.Errorf("stats %+v", s)
	}
}

// TestKeepNotThereAfterAll: a peer that advertises the word and opens ordinary
// sessions gets ordinary sessions.
func TestKeepNotThereAfterAll(t *testing.T) {
	for _, op := range []rc.Op{rc.OpGet, rc.OpPut} {
		t.Run(string(op), func(t *testing.T) {
			p := rctest.RGW
			p.Capabilities, p.CapabilitiesAlways = "keep", true
			r := newRig(t, rigOptions{profile: p})
			if err := r.client.Probe(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.peer.Set("b/k", random(failSize))
			for range 3 {
				if err := r.transfer(t.Context(), op); err != nil {
					t.Fatal(err)
				}
			}
			if p, n := r.peer.Seen("prepare"), r.peer.Seen("cancel"); p != 5 || n != 1 {
				t.Errorf("%d PREPAREs, %d CANCELs, want the probe, one try, and three", p, n)
			}
			if r.peer.Seen("next") != 0 || r.client.Stats().KeptOpened != 0 {
				t.Error("used as a kept session")
			}
		})
	}
}

// TestKeepRefused: the server does not want kept sessions now.
func TestKeepRefused(t *testing.T) {
	d := newDuo(t, duoOptions{})
	d.intercept = func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		refuse := r.Header.Get(token.HeaderKeep) != ""
		if refuse {
			w.WriteHeader(http.StatusBadGateway)
		}
		return refuse
	}
	c := d.client(nil)
	d.warm(c)
	for range 2 {
		if err := d.put(c, "k", 1000); err != nil {
			t.Fatal(err)
		}
	}
	if n := d.count(token.PathPrepare); n != 4 {
		t.Errorf("%d PREPAREs, want the probe, one refused, and two", n)
	}
}

// TestOrdinarySessionsNeedRoomToo: idle kept sessions hold all queue pairs when
// the endpoint stops to offer kept ones.
func TestOrdinarySessionsNeedRoomToo(t *testing.T) {
	d := newDuo(t, duoOptions{})
	pool, err := verbs.NewPool(d.own.dev, verbs.PoolOptions{
		PD: d.own.pd, Port: 1, MaxQPs: 2, Access: verbs.AccessRemoteWrite,
		Cap: verbs.QPCap{MaxSendWR: 2, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pool.Close() })
	refuse := false
	d.intercept = func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		no := refuse && r.Header.Get(token.HeaderKeep) != ""
		if no {
			w.WriteHeader(http.StatusBadGateway)
		}
		return no
	}
	c := d.client(func(o *rc.ClientOptions) { o.Pool, o.Sessions = pool, 2 })
	d.warm(c)
	for _, n := range []int{1 << 20, 2 << 20} {
		if err := d.put(c, "k", n); err != nil {
			t.Fatal(err)
		}
	}
	if s := c.Stats(); s.Idle != 2 {
		t.Fatalf("%d idle sessions", s.Idle)
	}
	refuse = true
	ctx, cancel := context.WithTimeout(t.Context(), clientPatience)
	defer cancel()
	if _, err := c.Put(ctx, rc.PutRequest{Bucket: "b", Key: "k", Src: d.seg.Slice(0, 4<<20)}); err != nil {
		t.Error(err)
	}
	c.Close()
}
