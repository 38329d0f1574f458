package rc_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"s3rdmafs/rc"
	"s3rdmafs/token"
	"s3rdmafs/verbs"
)

// Last column of section 10.1, as far as no data moves; and what a server must
// accept (section 23).
func TestServerPrepareAnswers(t *testing.T) {
	e := startServer(t, serverConfig{edit: func(o *rc.ServerOptions) { o.MaxTransfer = 1 << 20 }})
	e.objects.put("/b/k", make([]byte, 1000))
	e.objects.authorize = func(_ rc.Principal, op rc.Op, target token.Target) error {
		if strings.HasPrefix(target.Key, "secret") {
			return &rc.S3Error{Status: http.StatusForbidden, Code: "AccessDenied"}
		}
		return nil
	}
	type edits map[string]string // "" deletes
	for _, c := range []struct {
		name   string
		op     rc.Op
		edits  edits
		status int
		code   string
	}{
		{"protocol missing", rc.OpGet, edits{token.HeaderProtocol: ""}, 501, "NotImplemented"},
		{"other protocol", rc.OpGet, edits{token.HeaderProtocol: "hipobj-rc-v3"}, 501, "NotImplemented"},
		{"protocol in another case", rc.OpGet, edits{token.HeaderProtocol: "HIPOBJ-RC-V2"}, 501, "NotImplemented"},
		{"token missing", rc.OpGet, edits{token.HeaderToken: ""}, 400, "InvalidRdmaRequest"},
		{"DC token", rc.OpGet, edits{token.HeaderToken: "00b2a1040020010db8000000000000000000000001eeffc0008877665544332211001000000000000002efbe"}, 400, "InvalidRdmaRequest"},
		{"token without GID", rc.OpGet, edits{token.HeaderToken: "0145230100" + strings.Repeat("0", 78)}, 400, "InvalidRdmaRequest"},
		{"PSN zero", rc.OpGet, edits{token.HeaderPSN: "000000"}, 400, "InvalidRdmaRequest"},
		{"cookie zero", rc.OpGet, edits{token.HeaderCookie: "00000000"}, 400, "InvalidRdmaRequest"},
		{"size zero", rc.OpGet, edits{token.HeaderSize: "0"}, 400, "InvalidRdmaRequest"},
		{"size with sign", rc.OpGet, edits{token.HeaderSize: "+1"}, 400, "InvalidRdmaRequest"},
		{"size 2^31", rc.OpGet, edits{token.HeaderSize: "2147483648"}, 413, "EntityTooLarge"},
		{"size 2^64-1", rc.OpPut, edits{token.HeaderSize: "18446744073709551615"}, 413, "EntityTooLarge"},
		{"size over the server's largest", rc.OpPut, edits{token.HeaderSize: "1048577"}, 413, "EntityTooLarge"},
		{"PUT at an offset", rc.OpPut, edits{token.HeaderOffset: "1"}, 400, "InvalidRdmaRequest"},
		{"target without key", rc.OpGet, edits{token.HeaderTarget: "/b"}, 400, "InvalidRdmaRequest"},
		{"bad escape", rc.OpGet, edits{token.HeaderTarget: "/b/%zz"}, 400, "InvalidRdmaRequest"},
		{"access denied", rc.OpGet, edits{token.HeaderTarget: "/b/secret"}, 403, "AccessDenied"},
		{"access denied goes before query", rc.OpGet, edits{token.HeaderTarget: "/b/secret?acl="}, 403, "AccessDenied"},
		{"no such bucket", rc.OpPut, edits{token.HeaderTarget: "/missing/k"}, 404, "NoSuchBucket"},
		{"no such key", rc.OpGet, edits{token.HeaderTarget: "/b/missing"}, 404, "NoSuchKey"},
		{"range starts at the end", rc.OpGet, edits{token.HeaderOffset: "1000"}, 416, "InvalidRange"},
		{"range starts past the end", rc.OpGet, edits{token.HeaderOffset: "5000000000"}, 416, "InvalidRange"},
		{"range overflows", rc.OpGet, edits{token.HeaderOffset: "18446744073709551615"}, 416, "InvalidRange"},
		{"GET of a part", rc.OpGet, edits{token.HeaderTarget: "/b/k?partNumber=1"}, 501, "NotImplemented"},
		{"GET with an upload", rc.OpGet, edits{token.HeaderTarget: "/b/k?partNumber=1&uploadId=x"}, 501, "NotImplemented"},
		{"PUT with version", rc.OpPut, edits{token.HeaderTarget: "/b/k?versionId=x"}, 501, "NotImplemented"},
		{"PUT with half a part", rc.OpPut, edits{token.HeaderTarget: "/b/k?partNumber=1"}, 501, "NotImplemented"},
		{"part with more", rc.OpPut, edits{token.HeaderTarget: "/b/k?partNumber=1&uploadId=x&acl="}, 501, "NotImplemented"},
		{"unknown query", rc.OpGet, edits{token.HeaderTarget: "/b/k?response-content-type=x"}, 501, "NotImplemented"},
		{"part number 0", rc.OpPut, edits{token.HeaderTarget: "/b/k?partNumber=0&uploadId=x"}, 400, "InvalidRdmaRequest"},

		{"offset missing", rc.OpGet, edits{token.HeaderOffset: ""}, 200, ""},
		{"op in lower case", rc.OpGet, edits{token.HeaderOp: "get"}, 200, ""},
		{"short hex", rc.OpGet, edits{token.HeaderPSN: "A", token.HeaderCookie: "B"}, 200, ""},
		{"largest size", rc.OpPut, edits{token.HeaderSize: "1048576"}, 200, ""},
		{"headers of READY", rc.OpGet, edits{token.HeaderQPN: "zz", token.HeaderMRAddr: "zz", token.HeaderMRRKey: "zz"}, 200, ""},
		{"other checksum algorithm", rc.OpGet, edits{token.HeaderChecksumAlgorithm: "CRC32C"}, 200, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := e.newPeer(1)
			h := p.request(c.op, "/b/k", 1000).Header()
			for name, value := range c.edits {
				if value == "" {
					h.Del(name)
				} else {
					h.Set(name, value)
				}
			}
			a := e.must(token.PathPrepare, h)
			if a.status != c.status || a.code != c.code {
				t.Errorf("%v, want %d %s", a, c.status, c.code)
			}
			if a.status == http.StatusOK {
				id := a.header.Get(token.HeaderSession)
				e.expect("CANCEL", e.must(token.PathCancel, token.CancelRequest{Session: id, Cookie: 1}.Header()), 200, "")
			}
			e.gone()
			p.close()
		})
	}
	t.Run("suffix and upper case", func(t *testing.T) {
		p := e.newPeer(1000)
		req := p.request(rc.OpGet, "/b/k", 1000)
		h := req.Header()
		h.Set(token.HeaderToken, strings.ToUpper(req.Token.String())+":00007f3a5c001000:0000000000100000")
		s := p.opened(req, e.must(token.PathPrepare, h))
		s.connect()
		s.receive()
		ready := s.ready().Header()
		ready.Set(token.HeaderQPN, fmt.Sprintf("%016X", s.conn.QPN()))
		ready.Set(token.HeaderMRRKey, fmt.Sprintf("%016X", s.mr.RKey()))
		if f := s.final(e.must(token.PathReady, ready)); f.Bytes != 1000 {
			t.Errorf("%+v", f)
		}
	})
	t.Run("anonymous", func(t *testing.T) {
		for _, path := range []string{token.PathPrepare, token.PathReady, token.PathCancel, token.PathNext} {
			h := http.Header{token.HeaderProtocol: {token.Protocol}}
			e.expect(path, e.mustAs("", path, h), 403, "AccessDenied")
		}
	})
}

func TestServerFraming(t *testing.T) {
	e := startServer(t, serverConfig{})
	do := func(method, path, body string) int {
		r, err := http.NewRequestWithContext(t.Context(), method, e.http.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(principalHeader, "alice")
		resp, err := e.http.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	for _, c := range []struct {
		method, path, body string
		want               int
	}{
		{"POST", token.PathPrepare + "?x=y", "", 400},
		{"POST", token.PathPrepare, "body", 400},
		{"GET", token.PathPrepare, "", 405},
		{"POST", token.PathPrefix + "other", "", 405},
		{"POST", token.PathPrefix, "", 405},
		{"POST", token.PathPrepare, "", 501},
	} {
		if got := do(c.method, c.path, c.body); got != c.want {
			t.Errorf("%s %s with %q: %d, want %d", c.method, c.path, c.body, got, c.want)
		}
	}
}

// Requests that fail without an end to the session.
func TestServerReadyAnswers(t *testing.T) {
	e := startServer(t, serverConfig{})
	e.objects.put("/b/k", make([]byte, 1000))
	s := e.open(rc.OpGet, "/b/k", 1000)
	other := strings.Repeat("0", 32)
	for _, c := range []struct {
		name, principal, path, header, value string
		status                               int
		code                                 string
	}{
		{"READY without protocol", "alice", token.PathReady, token.HeaderProtocol, "", 400, "InvalidRdmaRequest"},
		{"READY of another protocol", "alice", token.PathReady, token.HeaderProtocol, "x", 400, "InvalidRdmaRequest"},
		{"session malformed", "alice", token.PathReady, token.HeaderSession, "1", 400, "InvalidRdmaRequest"},
		{"session unknown", "alice", token.PathReady, token.HeaderSession, other, 404, "NoSuchRdmaSession"},
		{"foreign READY", "bob", token.PathReady, token.HeaderAccept, "x", 404, "NoSuchRdmaSession"},
		{"cookie differs", "alice", token.PathReady, token.HeaderCookie, "2", 403, "RdmaCookieMismatch"},
		{"cookie malformed", "alice", token.PathReady, token.HeaderCookie, "0", 400, "InvalidRdmaRequest"},
		{"QP number missing", "alice", token.PathReady, token.HeaderQPN, "", 400, "InvalidRdmaRequest"},
		{"QP number not the token's", "alice", token.PathReady, token.HeaderQPN, "fffffe", 400, "InvalidRdmaRequest"},
		{"buffer missing", "alice", token.PathReady, token.HeaderMRAddr, "", 400, "InvalidRdmaRequest"},
		{"buffer zero", "alice", token.PathReady, token.HeaderMRRKey, "0", 400, "InvalidRdmaRequest"},
		{"CANCEL without protocol", "alice", token.PathCancel, token.HeaderProtocol, "", 400, "InvalidRdmaRequest"},
		{"CANCEL of nothing", "alice", token.PathCancel, token.HeaderSession, other, 200, ""},
		{"CANCEL malformed", "alice", token.PathCancel, token.HeaderSession, "x", 400, "InvalidRdmaRequest"},
		{"foreign CANCEL", "bob", token.PathCancel, token.HeaderAccept, "x", 404, "NoSuchRdmaSession"},
		{"NEXT without protocol", "alice", token.PathNext, token.HeaderProtocol, "", 400, "InvalidRdmaRequest"},
	} {
		h := s.ready().Header()
		if c.value == "" {
			h.Del(c.header)
		} else {
			h.Set(c.header, c.value)
		}
		e.expect(c.name, e.mustAs(c.principal, c.path, h), c.status, c.code)
	}
	if _, f := s.finishGet(); f.Bytes != 1000 {
		t.Errorf("after all of it: %+v", f)
	}
	e.expect("READY after FINAL", e.must(token.PathReady, s.ready().Header()), 404, "NoSuchRdmaSession")
}

// A client that goes away while its object is stored does not stop that.
func TestServerConnectionLostWhileStoring(t *testing.T) {
	e := startServer(t, serverConfig{})
	storing, finish := make(chan struct{}), make(chan struct{})
	e.objects.storing = func() error {
		close(storing)
		<-finish
		return nil
	}
	s := e.open(rc.OpPut, "/b/k", 4096)
	ctx, cancel := context.WithCancel(t.Context())
	answered := make(chan rc.Response, 1)
	go func() {
		answered <- e.srv.Ready(ctx, rc.Request{
			Header:       s.ready().Header(),
			Authenticate: func() (rc.Principal, error) { return rc.Principal{ID: "alice"}, nil },
		})
	}()
	s.write(nil)
	<-storing
	cancel()
	close(finish)
	if resp := <-answered; resp.Status != http.StatusOK {
		t.Errorf("FINAL: %d", resp.Status)
	}
	e.gone()
	if _, ok := e.objects.get("/b/k"); !ok {
		t.Error("not stored")
	}
}

func TestServerReadyAuthorizesAgain(t *testing.T) {
	e := startServer(t, serverConfig{})
	s := e.open(rc.OpPut, "/b/k", 4096)
	e.objects.authorize = func(rc.Principal, rc.Op, token.Target) error {
		return &rc.S3Error{Status: http.StatusForbidden, Code: "AccessDenied"}
	}
	e.expect("READY", e.must(token.PathReady, s.ready().Header()), 403, "AccessDenied")
	e.expect("second READY", e.must(token.PathReady, s.ready().Header()), 404, "NoSuchRdmaSession")
	e.gone()
}

func TestServerDuplicateReady(t *testing.T) {
	e := startServer(t, serverConfig{})
	storing, finish := make(chan struct{}), make(chan struct{})
	e.objects.storing = func() error {
		close(storing)
		<-finish
		return nil
	}
	s := e.open(rc.OpPut, "/b/k", 4096)
	first := e.start(token.PathReady, s.ready().Header())
	s.claimed()
	e.expect("second READY", e.must(token.PathReady, s.ready().Header()), 409, "RdmaSessionConflict")
	s.write(nil)
	<-storing
	e.expect("READY while storing", e.must(token.PathReady, s.ready().Header()), 409, "RdmaSessionConflict")
	e.expect("CANCEL while storing", e.must(token.PathCancel, s.ready().Header()), 200, "")
	close(finish)
	s.final(first.wait())
	if _, ok := e.objects.get("/b/k"); !ok {
		t.Error("not stored")
	}
}

// F12.
func TestServerCancelDuringReady(t *testing.T) {
	e := startServer(t, serverConfig{edit: func(o *rc.ServerOptions) { o.ExecTimeout = time.Hour }})
	running := func() (*serverSession, *pending) {
		s := e.open(rc.OpPut, "/b/k", 4096)
		ready := e.start(token.PathReady, s.ready().Header())
		s.claimed()
		e.expect("CANCEL", e.must(token.PathCancel, s.ready().Header()), 200, "")
		e.expect("second CANCEL", e.must(token.PathCancel, s.ready().Header()), 200, "")
		return s, ready
	}
	s, ready := running()
	s.write(nil) // was on its way
	if a := ready.wait(); a.status != 200 {
		t.Errorf("FINAL: %v", a)
	}
	s, ready = running()
	s.stop()
	e.expect("FINAL of a client that stopped", ready.wait(), 408, "RequestTimeout")
	e.gone()
}

func TestServerCancelPrepared(t *testing.T) {
	e := startServer(t, serverConfig{})
	s := e.open(rc.OpPut, "/b/k", 4096)
	for range 2 {
		e.expect("CANCEL", e.must(token.PathCancel, token.CancelRequest{Session: s.reply.Session, Cookie: 1}.Header()), 200, "")
	}
	e.gone()
	e.expect("READY", e.must(token.PathReady, s.ready().Header()), 404, "NoSuchRdmaSession")
	s.write(nil)
	if wc := s.completion(); wc.Status == verbs.WCSuccess {
		t.Error("write after CANCEL succeeded")
	}
}

// F10: READY never comes.
func TestServerReadyTooLate(t *testing.T) {
	e := startServer(t, serverConfig{edit: func(o *rc.ServerOptions) { o.PrepareTimeout = 20 * time.Millisecond }})
	e.objects.put("/b/k", make([]byte, 1000))
	put, get := e.open(rc.OpPut, "/b/k", 4096), e.open(rc.OpGet, "/b/k", 4096)
	e.gone()
	e.expect("READY of PUT", e.must(token.PathReady, put.ready().Header()), 404, "NoSuchRdmaSession")
	e.expect("READY of GET", e.must(token.PathReady, get.ready().Header()), 404, "NoSuchRdmaSession")
}

// A GID that cannot be reached: PREPARE tells the own GID nevertheless, so that
// the client can choose another one.
func TestServerUnreachableGID(t *testing.T) {
	e := startServer(t, serverConfig{})
	p := e.newPeer(4096)
	req := p.request(rc.OpPut, "/b/k", 4096)
	req.Token.GID = netip.MustParseAddr("::ffff:192.0.2.1").As16()
	s := p.prepare(req)
	if s.reply.Token.GID != e.gid.GID {
		t.Errorf("%+v", s.reply)
	}
	e.expect("READY", e.must(token.PathReady, s.ready().Header()), 502, "RdmaTransferFailed")
	e.gone()
	req.Keep = true
	e.expect("kept session", e.must(token.PathPrepare, req.Header()), 502, "RdmaTransferFailed")
	e.gone()
}

func TestServerSessionLimits(t *testing.T) {
	e := startServer(t, serverConfig{edit: func(o *rc.ServerOptions) { o.Sessions, o.SessionsPerPrincipal = 3, 2 }})
	p := e.newPeer(1)
	h := p.request(rc.OpPut, "/b/k", 1).Header()
	a := p.prepare(p.request(rc.OpPut, "/b/k", 1))
	e.expect("second", e.must(token.PathPrepare, h), 200, "")
	e.expect("third of one principal", e.must(token.PathPrepare, h), 503, "SlowDown")
	e.expect("first of another", e.mustAs("bob", token.PathPrepare, h), 200, "")
	e.expect("one more than the server has", e.mustAs("carol", token.PathPrepare, h), 503, "SlowDown")
	e.expect("CANCEL", e.must(token.PathCancel, a.ready().Header()), 200, "")
	e.expect("after CANCEL", e.mustAs("carol", token.PathPrepare, h), 200, "")
}

func TestServerStagingLimits(t *testing.T) {
	e := startServer(t, serverConfig{edit: func(o *rc.ServerOptions) {
		o.StagingBytes, o.StagingPerPrincipal, o.MaxTransfer = 3<<20, 2<<20, 1<<20
	}})
	p := e.newPeer(1)
	req := p.request(rc.OpPut, "/b/k", 1<<20)
	first := p.prepare(req)
	e.expect("second", e.must(token.PathPrepare, req.Header()), 200, "")
	e.expect("third of one principal", e.must(token.PathPrepare, req.Header()), 503, "SlowDown")
	e.expect("first of another", e.mustAs("bob", token.PathPrepare, req.Header()), 200, "")
	e.expect("more than the server has", e.mustAs("carol", token.PathPrepare, req.Header()), 503, "SlowDown")
	if st := e.srv.Stats(); st.StagingBytes != 3<<20 || st.StagingInUse != 3<<20 {
		t.Errorf("%+v", st)
	}
	e.expect("CANCEL", e.must(token.PathCancel, first.ready().Header()), 200, "")
	e.expect("after CANCEL", e.mustAs("carol", token.PathPrepare, req.Header()), 200, "")
}

func TestServerQPLimit(t *testing.T) {
	e := startServer(t, serverConfig{maxQPs: 1})
	p := e.newPeer(1)
	s := p.prepare(p.request(rc.OpPut, "/b/k", 1))
	e.expect("no QP left", e.must(token.PathPrepare, s.req.Header()), 503, "SlowDown")
	if st := e.srv.Stats(); st.Sessions != 1 {
		t.Errorf("%+v", st)
	}
}

// Sessions that could be given up make room for new ones: QPs that linger, and
// then idle kept ones.
func TestServerQPsReclaimed(t *testing.T) {
	e := startServer(t, serverConfig{maxQPs: 1, edit: func(o *rc.ServerOptions) { o.SessionsPerPrincipal = 1 }})
	for i := range 10 {
		e.put("/b/k", randomBytes(uint64(i), 1000))
	}
	e.openKept(1 << 20)
	p := e.newPeer(1)
	p.prepareAs("bob", p.request(rc.OpPut, "/b/k", 1))
	if st := e.srv.Stats(); st.KeptSessions != 0 || st.Sessions != 1 {
		t.Errorf("%+v", st)
	}
}

func TestServerTransferLimit(t *testing.T) {
	e := startServer(t, serverConfig{edit: func(o *rc.ServerOptions) { o.Transfers = 1 }})
	a, b := e.open(rc.OpPut, "/b/a", 4096), e.open(rc.OpPut, "/b/b", 4096)
	ready := e.start(token.PathReady, a.ready().Header())
	a.claimed()
	e.expect("second transfer", e.must(token.PathReady, b.ready().Header()), 503, "SlowDown")
	a.write(nil)
	a.final(ready.wait())
	b.finishPut()
}

func TestServerClose(t *testing.T) {
	e := startServer(t, serverConfig{})
	data := randomBytes(1, 4096)
	waiting, running := e.open(rc.OpPut, "/b/waiting", 4096), e.open(rc.OpPut, "/b/running", 4096)
	kept := e.openKept(1 << 20)
	ready := e.start(token.PathReady, running.ready().Header())
	running.claimed()
	closed := make(chan error, 1)
	go func() { closed <- e.srv.Close(context.Background()) }()
	e.closed = true
	probe := waiting.ready()
	probe.QPN ^= 1 // never claims the session
	e.eventually("closing", func() bool {
		return e.must(token.PathReady, probe.Header()).status == http.StatusServiceUnavailable
	})
	e.expect("PREPARE", e.must(token.PathPrepare, waiting.req.Header()), 503, "RdmaServiceUnavailable")
	e.expect("NEXT", e.must(token.PathNext, kept.next(rc.OpPut, "/b/k", 1).Header()), 503, "RdmaServiceUnavailable")
	e.expect("CANCEL", e.must(token.PathCancel, waiting.ready().Header()), 200, "")
	select {
	case err := <-closed:
		t.Fatalf("closed during a transfer: %v", err)
	default:
	}
	copy(running.mr.Bytes(), data)
	running.write(nil)
	running.final(ready.wait())
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if o, _ := e.objects.get("/b/running"); !bytes.Equal(o.data, data) {
		t.Error("stored something else")
	}
}

func TestServerCloseBreaksOff(t *testing.T) {
	e := startServer(t, serverConfig{edit: func(o *rc.ServerOptions) { o.ExecTimeout = time.Hour }})
	s := e.open(rc.OpPut, "/b/k", 4096)
	ready := e.start(token.PathReady, s.ready().Header())
	s.claimed()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := e.srv.Close(ctx); err != nil {
		t.Error(err)
	}
	e.closed = true
	e.expect("FINAL", ready.wait(), 503, "RdmaServiceUnavailable")
	if err := e.srv.Close(ctx); err != rc.ErrClosed {
		t.Errorf("second Close: %v", err)
	}
}
