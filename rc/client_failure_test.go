package rc_test

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"s3rdmafs/rc"
	"s3rdmafs/rc/rctest"
	"s3rdmafs/token"
	"s3rdmafs/verbs"
	"s3rdmafs/verbs/shm"
)

// The failures of section 13.3. After each, the memory of the transfer belongs to
// somebody else: it is filled with a canary, everything that is still under way
// is let loose, and the canary must be whole.

const failSize = 100_000

// impatient makes the client's own deadline the first to end a transfer.
func impatient(o *rc.ClientOptions) {
	o.Timeouts.Transfer = 500 * time.Millisecond
	o.Timeouts.Rate = 1 << 40
	o.Timeouts.Final = 500 * time.Millisecond
}

// answerOnly answers requests of one route.
func answerOnly(route string, status int, code string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/.hipobj-rc/"+route {
			return false
		}
		w.WriteHeader(status)
		if code != "" {
			w.Write([]byte("<Error><Code>" + code + "</Code><Message>m</Message></Error>"))
		}
		return true
	}
}

// transfer runs a GET or a PUT of failSize bytes of key "k".
func (r *rig) transfer(ctx context.Context, op rc.Op) error {
	if op == rc.OpGet {
		_, err := r.get(ctx, "k", 0, failSize)
		return err
	}
	_, err := r.put(ctx, "k", failSize)
	return err
}

func TestF1PrepareRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status   int
		code     string
		usable   bool
		prepares int
	}{
		{http.StatusForbidden, "AccessDenied", true, 1},
		{http.StatusNotFound, "NoSuchBucket", true, 1},
		{http.StatusServiceUnavailable, "SlowDown", true, 1},
		{http.StatusTooManyRequests, "RdmaResourceLimit", true, 1},
		{http.StatusInternalServerError, "InternalError", false, 1},
		{http.StatusConflict, "OperationAborted", true, 2},
	} {
		for _, op := range []rc.Op{rc.OpGet, rc.OpPut} {
			t.Run(name("%s %d", op, c.status), func(t *testing.T) {
				r := newRig(t, rigOptions{hooks: rctest.Hooks{Answer: answerOnly("prepare", c.status, c.code)}})
				e := wantError(t, r.transfer(t.Context(), op), rc.ActionHTTP, rc.PhasePrepare)
				if e.Status != c.status || e.Code != c.code {
					t.Errorf("status %d %s", e.Status, e.Code)
				}
				if ok, reason := r.client.EligibleGet(0, 1000); ok != c.usable {
					t.Errorf("usable afterwards: %v (%s)", ok, reason)
				}
				if p, o := r.peer.Seen("prepare"), r.peer.Seen("cancel"); p != c.prepares || o != 0 {
					t.Errorf("%d PREPAREs, %d CANCELs", p, o)
				}
				if n := r.own.pool.Stats().InUse; n != 0 {
					t.Errorf("%d queue pairs out", n)
				}
			})
		}
	}
}

func TestF1Preconditions(t *testing.T) {
	h := rctest.Hooks{Answer: answerOnly("prepare", http.StatusPreconditionFailed, "PreconditionFailed")}
	r := newRig(t, rigOptions{hooks: h})
	err := r.transfer(t.Context(), rc.OpPut)
	wantError(t, err, rc.ActionFail, rc.PhasePrepare)
	if !errors.Is(err, rc.ErrPrecondition) {
		t.Errorf("%v is not ErrPrecondition", err)
	}
}

func TestF1TooLargeIsRemembered(t *testing.T) {
	r := newRig(t, rigOptions{hooks: rctest.Hooks{Answer: answerOnly("prepare", http.StatusRequestEntityTooLarge, "")}})
	wantError(t, r.transfer(t.Context(), rc.OpPut), rc.ActionHTTP, rc.PhasePrepare)
	if got := r.client.MaxTransfer(rc.OpPut); got != failSize/2 {
		t.Errorf("largest PUT afterwards %d, want half of what was refused", got)
	}
	wantError(t, r.transfer(t.Context(), rc.OpPut), rc.ActionHTTP, rc.PhasePrepare)
	if n := r.peer.Seen("prepare"); n != 1 {
		t.Errorf("the size was tried %d times", n)
	}
}

func TestF2NoRTS(t *testing.T) {
	for _, op := range []rc.Op{rc.OpGet, rc.OpPut} {
		t.Run(string(op), func(t *testing.T) {
			r := newRig(t, rigOptions{client: func(o *rc.ClientOptions) { o.MTU = 99 }})
			r.peer.Set("b/k", random(failSize))
			wantError(t, r.transfer(t.Context(), op), rc.ActionHTTP, rc.PhasePrepare)
			if p, c := r.peer.Seen("ready"), r.peer.Seen("cancel"); p != 0 || c != 1 {
				t.Errorf("%d READYs, %d CANCELs", p, c)
			}
			if n := r.peer.Sessions(); n != 0 {
				t.Errorf("the server keeps %d sessions", n)
			}
		})
	}
}

func TestF3ReadyRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status   int
		code     string
		prepares int
	}{
		{http.StatusForbidden, "AccessDenied", 1},
		{http.StatusNotFound, "NoSuchRdmaSession", 2},
		{http.StatusConflict, "RdmaSessionConflict", 2},
		{http.StatusTooManyRequests, "RdmaResourceLimit", 1},
		{http.StatusServiceUnavailable, "SlowDown", 1},
	} {
		for _, op := range []rc.Op{rc.OpGet, rc.OpPut} {
			t.Run(name("%s %d", op, c.status), func(t *testing.T) {
				r := newRig(t, rigOptions{hooks: rctest.Hooks{Answer: answerOnly("ready", c.status, c.code)}})
				r.peer.Set("b/k", random(failSize))
				err := r.transfer(t.Context(), op)
				plant(r.seg.Buf)
				e := wantError(t, err, rc.ActionHTTP, rc.PhaseReady)
				if e.Status != c.status {
					t.Errorf("status %d", e.Status)
				}
				if p, n := r.peer.Seen("prepare"), r.peer.Seen("cancel"); p != c.prepares || n != c.prepares {
					t.Errorf("%d PREPAREs, %d CANCELs, want %d of each", p, n, c.prepares)
				}
				if _, bound := r.client.Stats().InUse, r.client.Stats().Bound; (bound < 8) != (c.status == 429 || c.status == 503) {
					t.Errorf("session bound %d afterwards", bound)
				}
				checkCanary(t, r.seg.Buf)
			})
		}
	}
}

// TestF4GetStalls: the server writes when the client has given up, or the write
// is on its way then, at each point of the responder.
func TestF4GetStalls(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		before bool
		point  shm.Point
	}{
		{name: "server does not write", before: true},
		{name: "write under way", point: shm.PointSend},
		{name: "write arrived", point: shm.PointReceived},
		{name: "write checked", point: shm.PointChecked},
	} {
		for _, how := range []string{"deadline", "caller"} {
			t.Run(c.name+", "+how, func(t *testing.T) {
				g := newGate()
				defer g.release()
				hook := func(p shm.Point, w shm.Write) shm.Verdict {
					if p == c.point {
						g.hold()
					}
					return shm.Verdict{}
				}
				o := rigOptions{exec: 2 * time.Second}
				switch {
				case c.before:
					o.hooks.BeforeWrite = g.hold
				case c.point == shm.PointSend:
					o.theirs = &shm.Faults{Hook: hook}
				default:
					o.own = &shm.Faults{Hook: hook}
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if how == "deadline" {
					o.client = impatient
				}
				r := newRig(t, o)
				if how != "deadline" {
					go func() {
						g.await(t)
						cancel()
					}()
				}
				r.peer.Set("b/k", random(failSize))
				err := r.transfer(ctx, rc.OpGet)
				plant(r.seg.Buf)
				if how == "deadline" {
					wantError(t, err, rc.ActionHTTP, rc.PhaseData)
					if !errors.Is(err, rc.ErrDeadline) {
						t.Errorf("error %v", err)
					}
				} else {
					wantError(t, err, rc.ActionFail, rc.PhaseData)
					if !errors.Is(err, context.Canceled) {
						t.Errorf("error %v", err)
					}
				}
				if n := r.peer.Seen("cancel"); n != 1 {
					t.Errorf("%d CANCELs", n)
				}
				g.release()
				r.quiet(3) // PREPARE, READY, CANCEL
				checkCanary(t, r.seg.Buf)
			})
		}
	}
}

// TestF4DrainWaitsForTheCopy: data that is just landing when the client gives
// up ends to land before Get returns.
func TestF4DrainWaitsForTheCopy(t *testing.T) {
	g := newGate()
	defer g.release()
	var returned atomic.Bool
	var late atomic.Int32
	r := newRig(t, rigOptions{exec: 2 * time.Second, own: &shm.Faults{Seed: 1, Piece: 10_000, Hook: func(p shm.Point, w shm.Write) shm.Verdict {
		if p == shm.PointPiece {
			g.hold()
			if returned.Load() {
				late.Add(1)
			}
		}
		return shm.Verdict{}
	}}})
	r.peer.Set("b/k", random(failSize))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := r.get(ctx, "k", 0, failSize)
		plant(r.seg.Buf)
		returned.Store(true)
		ended <- err
	}()
	g.await(t)
	cancel()
	g.release()
	if err := <-ended; err == nil {
		t.Error("a cancelled GET was good")
	}
	r.quiet(3)
	if n := late.Load(); n != 0 {
		t.Errorf("%d pieces landed after Get had returned", n)
	}
	checkCanary(t, r.seg.Buf)
}

func TestF5ClientUnreachable(t *testing.T) {
	r := newRig(t, rigOptions{theirs: &shm.Faults{Hook: func(p shm.Point, w shm.Write) shm.Verdict {
		if p == shm.PointSend {
			return shm.Verdict{Status: verbs.WCRetryExcErr}
		}
		return shm.Verdict{}
	}}})
	r.peer.Set("b/k", random(failSize))
	err := r.transfer(t.Context(), rc.OpGet)
	plant(r.seg.Buf)
	e := wantError(t, err, rc.ActionHTTP, rc.PhaseReady)
	if e.Status != rctest.RGW.Answers[rctest.PeerBusy].Status {
		t.Errorf("status %d", e.Status)
	}
	// One more session was tried, as section 14.4 says.
	if n := r.peer.Seen("cancel"); n != 2 {
		t.Errorf("%d CANCELs", n)
	}
	checkCanary(t, r.seg.Buf)
}

// TestF5WrongDestination: the server writes to where the client gave no right.
func TestF5WrongDestination(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(addr uint64, rkey uint32) (uint64, uint32)
	}{
		{"another key", func(a uint64, k uint32) (uint64, uint32) { return a, k ^ 0x100 }},
		{"past the region", func(a uint64, k uint32) (uint64, uint32) { return a + regionSize - 10, k }},
		{"before the region", func(a uint64, k uint32) (uint64, uint32) { return a - 1, k }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, rigOptions{hooks: rctest.Hooks{Remote: c.edit}})
			r.peer.Set("b/k", random(failSize))
			plant(r.seg.Buf)
			if e, ok := r.transfer(t.Context(), rc.OpGet).(*rc.Error); !ok || e.Action != rc.ActionHTTP {
				t.Errorf("error %v", e)
			}
			checkCanary(t, r.seg.Buf)
		})
	}
}

// TestF6PutWriteFails: nothing is stored, and the source is not read any more.
func TestF6PutWriteFails(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		status verbs.WCStatus
		action rc.Action
	}{
		{"refused", verbs.WCRemAccessErr, rc.ActionHTTP},
		// The acknowledgement may be what was lost.
		{"unanswered", verbs.WCRetryExcErr, rc.ActionUnknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			// The peer waits longer for the data than the client for an answer.
			r := newRig(t, rigOptions{exec: 1500 * time.Millisecond, own: &shm.Faults{Hook: func(p shm.Point, w shm.Write) shm.Verdict {
				if p == shm.PointSend {
					return shm.Verdict{Status: c.status}
				}
				return shm.Verdict{}
			}}})
			err := r.transfer(t.Context(), rc.OpPut)
			wantError(t, err, c.action, rc.PhaseData)
			if !errors.Is(err, rc.ErrCompletion) {
				t.Errorf("error %v", err)
			}
			r.quiet(3)
			if r.peer.Stored() != 0 || r.peer.Seen("cancel") != 1 {
				t.Errorf("stored %d, %d CANCELs", r.peer.Stored(), r.peer.Seen("cancel"))
			}
		})
	}
	t.Run("answer settles it", func(t *testing.T) {
		r := newRig(t, rigOptions{hooks: rctest.Hooks{PrepareHeader: func(h http.Header) { h.Set(token.HeaderMRRKey, "1") }}, exec: 300 * time.Millisecond})
		// Completion and answer come at about the same time.
		e, ok := r.transfer(t.Context(), rc.OpPut).(*rc.Error)
		if !ok || e.Action != rc.ActionHTTP || (e.Phase != rc.PhaseReady && e.Phase != rc.PhaseData) {
			t.Fatalf("error %v", e)
		}
		if r.peer.Stored() != 0 {
			t.Error("stored all the same")
		}
		if e.Status != 0 && e.Status != rctest.RGW.Answers[rctest.Timeout].Status && e.Status != rctest.RGW.Answers[rctest.WireError].Status {
			t.Errorf("status %d", e.Status)
		}
	})
}

// TestF6SourceIsReused: the write of a PUT is on its way when the client gives
// up and its memory gets other contents, which must not be stored.
func TestF6SourceIsReused(t *testing.T) {
	t.Parallel()
	for _, point := range []shm.Point{shm.PointReceived, shm.PointChecked} {
		t.Run(name("point %d", point), func(t *testing.T) {
			g := newGate()
			defer g.release()
			r := newRig(t, rigOptions{exec: 2 * time.Second, client: impatient, theirs: &shm.Faults{Hook: func(p shm.Point, w shm.Write) shm.Verdict {
				if p == point {
					g.hold()
				}
				return shm.Verdict{}
			}}})
			data := random(failSize)
			copy(r.seg.Buf, data)
			err := r.transfer(t.Context(), rc.OpPut)
			plant(r.seg.Buf)
			wantError(t, err, rc.ActionUnknown, rc.PhaseData)
			g.release()
			r.quiet(3)
			if o, ok := r.peer.Get("b/k"); ok {
				wantBytes(t, "stored object", o.Data, data)
			}
			checkCanary(t, r.seg.Buf)
		})
	}
}

func TestF7FinalLost(t *testing.T) {
	r := newRig(t, rigOptions{hooks: rctest.Hooks{BeforeFinal: func() bool { return true }}})
	data := random(failSize)
	copy(r.seg.Buf, data)
	err := r.transfer(t.Context(), rc.OpPut)
	if e, ok := err.(*rc.Error); !ok || e.Action != rc.ActionUnknown || e.Status != 0 {
		t.Errorf("error %v", err)
	}
	if o, ok := r.peer.Get("b/k"); !ok || len(o.Data) != failSize {
		t.Error("the object was not stored, so this test tests nothing")
	}
	if n := r.peer.Seen("ready"); n != 1 {
		t.Errorf("READY was sent %d times", n)
	}
}

// TestF7FinalMalformed: what cannot be understood leaves a PUT unknown and makes a
// GET invalid.
func TestF7FinalMalformed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, header, value string }{
		{"no echo", token.HeaderProtocol, ""},
		{"no cookie", token.HeaderCookie, ""},
		{"other cookie", token.HeaderCookie, "00000001"},
		{"no count", token.HeaderBytes, ""},
		{"too many bytes", token.HeaderBytes, "100001"},
	} {
		for _, op := range []rc.Op{rc.OpGet, rc.OpPut} {
			t.Run(c.name+" "+string(op), func(t *testing.T) {
				r := newRig(t, rigOptions{hooks: rctest.Hooks{FinalHeader: func(h http.Header) {
					h.Del(c.header)
					if c.value != "" {
						h.Set(c.header, c.value)
					}
				}}})
				r.peer.Set("b/k", random(failSize))
				err := r.transfer(t.Context(), op)
				plant(r.seg.Buf)
				action := rc.ActionHTTP
				if op == rc.OpPut {
					action = rc.ActionUnknown
				}
				wantError(t, err, action, rc.PhaseFinal)
				if !errors.Is(err, rc.ErrProtocol) {
					t.Errorf("error %v", err)
				}
				checkCanary(t, r.seg.Buf)
			})
		}
	}
}

func TestF8StoringFails(t *testing.T) {
	r := newRig(t, rigOptions{hooks: rctest.Hooks{Store: func() (int, string) { return http.StatusForbidden, "QuotaExceeded" }}})
	e := wantError(t, r.transfer(t.Context(), rc.OpPut), rc.ActionFail, rc.PhaseFinal)
	if e.Status != http.StatusForbidden || e.Code != "QuotaExceeded" {
		t.Errorf("%d %s", e.Status, e.Code)
	}
	if n := r.peer.Seen("prepare"); n != 1 {
		t.Errorf("tried %d times", n)
	}
}

func TestF9WrongImmediate(t *testing.T) {
	r := newRig(t, rigOptions{hooks: rctest.Hooks{Immediate: func(c uint32) uint32 { return c ^ 1 }}})
	r.peer.Set("b/k", random(failSize))
	err := r.transfer(t.Context(), rc.OpGet)
	plant(r.seg.Buf)
	wantError(t, err, rc.ActionHTTP, rc.PhaseData)
	if !errors.Is(err, rc.ErrCookie) {
		t.Errorf("error %v", err)
	}
	if s := r.client.Stats(); s.CookieMismatches == 0 {
		t.Error("the mismatch is not counted")
	}
	if n := r.peer.Seen("cancel"); n != 1 {
		t.Errorf("%d CANCELs", n)
	}
	checkCanary(t, r.seg.Buf)
}

// TestF9FinalWithoutData: a success whose completion never comes is none.
func TestF9FinalWithoutData(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{hooks: rctest.Hooks{NoWrite: true}})
	r.peer.Set("b/k", random(failSize))
	plant(r.seg.Buf)
	wantError(t, r.transfer(t.Context(), rc.OpGet), rc.ActionHTTP, rc.PhaseData)
	r.quiet(3)
	if n := r.peer.Seen("cancel"); n != 1 {
		t.Errorf("%d CANCELs", n)
	}
	if n := r.own.pool.Stats().InUse; n != 0 {
		t.Errorf("%d queue pairs out", n)
	}
	checkCanary(t, r.seg.Buf)
}

func TestF11ServerDies(t *testing.T) {
	for _, op := range []rc.Op{rc.OpGet, rc.OpPut} {
		t.Run(string(op), func(t *testing.T) {
			r := newRig(t, rigOptions{hooks: rctest.Hooks{Ready: func() { panic(http.ErrAbortHandler) }}})
			r.peer.Set("b/k", random(failSize))
			err := r.transfer(t.Context(), op)
			plant(r.seg.Buf)
			e, ok := err.(*rc.Error)
			if !ok || e.Status != 0 {
				t.Fatalf("error %v", err)
			}
			// A PUT's write may have been posted before the connection broke.
			if e.Action != rc.ActionHTTP && !(op == rc.OpPut && e.Action == rc.ActionUnknown) {
				t.Errorf("action %s", e.Action)
			}
			if r.peer.Stored() != 0 {
				t.Error("stored")
			}
			checkCanary(t, r.seg.Buf)
		})
	}
	t.Run("not there at all", func(t *testing.T) {
		own := newEnd(t, nil)
		c := newClient(t, own, "http://127.0.0.1:1", nil)
		seg := own.region(t, 1000)
		_, err := c.Get(t.Context(), rc.GetRequest{Bucket: "b", Key: "k", Dst: seg})
		wantError(t, err, rc.ActionHTTP, rc.PhasePrepare)
		if ok, _ := c.EligibleGet(0, 1000); ok {
			t.Error("no negative entry")
		}
	})
}

// TestF12CancelDuringReady: the caller gives up while the server stores.
func TestF12CancelDuringReady(t *testing.T) {
	g := newGate()
	defer g.release()
	r := newRig(t, rigOptions{hooks: rctest.Hooks{BeforeFinal: func() bool {
		g.hold()
		return false
	}}})
	data := random(failSize)
	copy(r.seg.Buf, data)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		g.await(t)
		cancel()
	}()
	err := r.transfer(ctx, rc.OpPut)
	plant(r.seg.Buf)
	// Whether the acknowledgement was seen before is not decided.
	if e, ok := err.(*rc.Error); !ok || e.Action != rc.ActionUnknown || !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if n := r.peer.Seen("cancel"); n != 1 {
		t.Errorf("%d CANCELs", n)
	}
	g.release()
	r.quiet(3)
	o, _ := r.peer.Get("b/k")
	wantBytes(t, "stored object", o.Data, data)
	checkCanary(t, r.seg.Buf)
}

// TestCancelHangs: the buffer is safe, and the transfer ends, though nobody
// answers CANCEL (section 14.3).
func TestCancelHangs(t *testing.T) {
	g := newGate()
	defer g.release()
	r := newRig(t, rigOptions{
		hooks:  rctest.Hooks{Immediate: func(c uint32) uint32 { return c + 1 }, Cancel: g.hold},
		client: func(o *rc.ClientOptions) { o.Timeouts.Cancel = 10 * time.Millisecond },
	})
	r.peer.Set("b/k", random(failSize))
	err := r.transfer(t.Context(), rc.OpGet)
	plant(r.seg.Buf)
	wantError(t, err, rc.ActionHTTP, rc.PhaseData)
	checkCanary(t, r.seg.Buf)
}

// TestLateDuplicates: requests of a finished transfer arrive again after its
// memory was given back and its queue pair is reused.
func TestLateDuplicates(t *testing.T) {
	r := newRig(t, rigOptions{
		own:    &shm.Faults{Seed: 3, Late: 1, LateBy: 5 * time.Millisecond},
		theirs: &shm.Faults{Seed: 4, Late: 1, LateBy: 5 * time.Millisecond},
	})
	half := r.seg.Slice(regionSize/2, failSize)
	plant(r.seg.Buf[:4*failSize])
	for i := range 40 {
		data := random(failSize - i)
		key := name("k%d", i)
		r.peer.Set("b/"+key, data)
		at := r.seg.Slice(i%4*failSize, len(data))
		if _, err := r.client.Get(t.Context(), rc.GetRequest{Bucket: "b", Key: key, Dst: at}); err != nil {
			t.Fatal(err)
		}
		wantBytes(t, key, at.Buf, data)
		plant(at.Buf)
		copy(half.Buf, data)
		if _, err := r.client.Put(t.Context(), rc.PutRequest{Bucket: "b", Key: "put", Src: half.Slice(0, len(data))}); err != nil {
			t.Fatal(err)
		}
		if o, _ := r.peer.Get("b/put"); len(o.Data) != len(data) {
			t.Fatalf("stored %d bytes", len(o.Data))
		}
		checkCanary(t, r.seg.Buf[:4*failSize])
	}
}

// TestLossyFabric: drops are repaired by retries, or fail cleanly.
func TestLossyFabric(t *testing.T) {
	r := newRig(t, rigOptions{
		own:    &shm.Faults{Seed: 5, Drop: 0.2},
		theirs: &shm.Faults{Seed: 6, Drop: 0.2},
	})
	data := random(failSize)
	for range 5 {
		copy(r.seg.Buf, data)
		if _, err := r.put(t.Context(), "k", failSize); err != nil {
			t.Fatal(err)
		}
		clear(r.seg.Buf[:failSize])
		if _, err := r.get(t.Context(), "k", 0, failSize); err != nil {
			t.Fatal(err)
		}
		wantBytes(t, "data", r.seg.Buf[:failSize], data)
	}
}
