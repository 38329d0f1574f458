package rc_test

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"testing"
	"time"
	"weak"

	"s3rdmafs/rc"
	"s3rdmafs/token"
)

// hangingObjects never come to an end by themselves for the key "hangs".
type hangingObjects struct {
	*memObjects
	authorize, open, store bool
	storing                chan struct{} // receives when Store hangs
}

func hang(ctx context.Context, yes bool, t token.Target) error {
	if yes && t.Key == "hangs" {
		<-ctx.Done()
		return errors.New("gave up")
	}
	return nil
}

func (o *hangingObjects) Authorize(ctx context.Context, p rc.Principal, op rc.Op, t token.Target) error {
	if err := hang(ctx, o.authorize, t); err != nil {
		return err
	}
	return o.memObjects.Authorize(ctx, p, op, t)
}

func (o *hangingObjects) OpenRange(ctx context.Context, p rc.Principal, t token.Target, off, size int64, c rc.Conditions) (rc.Range, error) {
	if err := hang(ctx, o.open, t); err != nil {
		return rc.Range{}, err
	}
	return o.memObjects.OpenRange(ctx, p, t, off, size, c)
}

func (o *hangingObjects) Store(ctx context.Context, p rc.Principal, t token.Target, data []byte, so rc.StoreOptions) (rc.Stored, error) {
	if o.store && t.Key == "hangs" {
		o.storing <- struct{}{}
	}
	if err := hang(ctx, o.store, t); err != nil {
		return rc.Stored{}, err
	}
	return o.memObjects.Store(ctx, p, t, data, so)
}

// What the store behind the server takes too long for ends with the time for the
// transfer, and its sessions with it.
func TestServerBoundsTheStore(t *testing.T) {
	start := func(t *testing.T, o *hangingObjects) *serverEnv {
		return startServer(t, serverConfig{edit: func(so *rc.ServerOptions) {
			o.memObjects = so.Objects.(*memObjects)
			o.storing = make(chan struct{}, 1)
			so.Objects = o
			so.ExecTimeout, so.StoreTimeout = 100*time.Millisecond, 100*time.Millisecond
		}})
	}
	put := func(e *serverEnv) answer {
		s := e.open(rc.OpPut, "/b/hangs", 1000)
		ready := e.start(token.PathReady, s.ready().Header())
		s.write(nil)
		return ready.wait()
	}
	next := func(e *serverEnv) answer {
		s := e.openKept(1000)
		s.receive()
		return e.must(token.PathNext, s.next(rc.OpGet, "/b/hangs", 1000).Header())
	}
	for _, c := range []struct {
		name    string
		objects hangingObjects
		run     func(*serverEnv) answer
		status  int
		code    string
	}{
		{"PREPARE, authorizing", hangingObjects{authorize: true}, func(e *serverEnv) answer {
			return e.must(token.PathPrepare, e.newPeer(1000).request(rc.OpPut, "/b/hangs", 1000).Header())
		}, http.StatusRequestTimeout, "RequestTimeout"},
		{"PREPARE, opening", hangingObjects{open: true}, func(e *serverEnv) answer {
			return e.must(token.PathPrepare, e.newPeer(1000).request(rc.OpGet, "/b/hangs", 1000).Header())
		}, http.StatusRequestTimeout, "RequestTimeout"},
		{"NEXT, authorizing", hangingObjects{authorize: true}, func(e *serverEnv) answer {
			return next(e)
		}, http.StatusRequestTimeout, "RequestTimeout"},
		{"NEXT, opening", hangingObjects{open: true}, func(e *serverEnv) answer {
			return next(e)
		}, http.StatusRequestTimeout, "RequestTimeout"},
		{"READY, storing", hangingObjects{store: true}, put, http.StatusGatewayTimeout, "RdmaOutcomeUnknown"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := start(t, &c.objects)
			e.objects.put("/b/k", random(1000))
			e.expect("answer", c.run(e), c.status, c.code)
			e.gone()
		})
	}
}

// Close ends even what the store behind the server has in hand.
func TestServerCloseBreaksStoringOff(t *testing.T) {
	o := &hangingObjects{store: true, storing: make(chan struct{}, 1)}
	e := startServer(t, serverConfig{edit: func(so *rc.ServerOptions) {
		o.memObjects = so.Objects.(*memObjects)
		so.Objects = o
	}})
	s := e.open(rc.OpPut, "/b/hangs", 1000)
	ready := e.start(token.PathReady, s.ready().Header())
	s.write(nil)
	<-o.storing
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	e.closed = true
	if err := e.srv.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
	e.expect("PUT", ready.wait(), http.StatusGatewayTimeout, "RdmaOutcomeUnknown")
}

// The value of a principal may hang on the request that it was made for.
func TestServerForgetsPrincipals(t *testing.T) {
	e := startServer(t, serverConfig{edit: func(o *rc.ServerOptions) { o.Linger = time.Hour }})
	type value struct{ _ [64]byte }
	send := func(handle func(context.Context, rc.Request) rc.Response, h http.Header) (weak.Pointer[value], rc.Response) {
		v := new(value)
		return weak.Make(v), handle(t.Context(), rc.Request{Header: h, Authenticate: func() (rc.Principal, error) {
			return rc.Principal{ID: "alice", Value: v}, nil
		}})
	}
	gone := func(what string, w weak.Pointer[value]) {
		t.Helper()
		runtime.GC()
		if w.Value() != nil {
			t.Errorf("the principal of %s is still held", what)
		}
	}
	p := e.newPeer(1000)
	req := p.request(rc.OpPut, "/b/k", 1000)
	w, resp := send(e.srv.Prepare, req.Header())
	gone("PREPARE", w)
	s := p.opened(req, answer{status: resp.Status, header: resp.Header})
	s.connect()
	s.write(nil)
	w, resp = send(e.srv.Ready, s.ready().Header())
	if resp.Status != http.StatusOK || e.srv.Stats().Sessions != 1 {
		t.Fatalf("status %d, %+v", resp.Status, e.srv.Stats())
	}
	gone("READY", w)
}

func TestServerStagingOfPrincipals(t *testing.T) {
	const buffer = 64 << 10 // of the smallest transfers
	prepare := func(e *serverEnv, principal string, size int64, keep bool) answer {
		e.t.Helper()
		p := e.newPeer(1)
		req := p.request(rc.OpPut, "/b/k", size)
		req.Keep = keep
		return e.mustAs(principal, token.PathPrepare, req.Header())
	}
	t.Run("one leaves room for others", func(t *testing.T) {
		e := startServer(t, serverConfig{edit: func(o *rc.ServerOptions) { o.StagingBytes, o.MaxTransfer = 8*buffer, 2*buffer }})
		for i := range 4 {
			e.expect(name("session %d", i), prepare(e, "alice", 1, false), http.StatusOK, "")
		}
		e.expect("more than half", prepare(e, "alice", 1, false), http.StatusServiceUnavailable, "SlowDown")
		e.expect("somebody else", prepare(e, "bob", 1, false), http.StatusOK, "")
	})
	t.Run("but may have its largest transfer", func(t *testing.T) {
		e := startServer(t, serverConfig{edit: func(o *rc.ServerOptions) { o.StagingBytes, o.MaxTransfer = 3*buffer, 0 }})
		e.expect("largest", prepare(e, "alice", 3*buffer, false), http.StatusOK, "")
	})
	// What cannot be had anyhow costs nobody an idle session.
	t.Run("no eviction in vain", func(t *testing.T) {
		for limit, edit := range map[string]func(*rc.ServerOptions){
			"own": func(o *rc.ServerOptions) { o.StagingPerPrincipal, o.MaxTransfer = 8*buffer, 8*buffer },
			"all": func(o *rc.ServerOptions) {
				o.StagingBytes, o.StagingPerPrincipal, o.MaxTransfer = 8*buffer, 8*buffer, 8*buffer
			},
		} {
			e := startServer(t, serverConfig{edit: edit})
			e.expect("in use", prepare(e, "alice", 4*buffer, false), http.StatusOK, "")
			e.expect("idle", prepare(e, "alice", 1, true), http.StatusOK, "")
			e.expect(limit+": too much", prepare(e, "alice", 8*buffer, false), http.StatusServiceUnavailable, "SlowDown")
			if n := e.srv.Stats().KeptSessions; n != 1 {
				t.Errorf("%s: %d idle sessions are left", limit, n)
			}
			e.expect(limit+": what fits then", prepare(e, "alice", 4*buffer, false), http.StatusOK, "")
			if n := e.srv.Stats().KeptSessions; n != 0 {
				t.Errorf("%s: %d idle sessions are left", limit, n)
			}
		}
	})
}
