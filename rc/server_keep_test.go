package rc_test

import (
	"bytes"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"s3rdmafs/rc"
	"s3rdmafs/token"
	"s3rdmafs/verbs"
)

// openKept opens a kept session of alice and takes it to RTS.
func (e *serverEnv) openKept(capacity int64) *serverSession {
	e.t.Helper()
	return e.openKeptAs("alice", capacity)
}

func (e *serverEnv) openKeptAs(principal string, capacity int64) *serverSession {
	e.t.Helper()
	p := e.newPeer(int(capacity))
	req := p.request(rc.OpPut, "/b/k", capacity)
	req.Keep = true
	s := p.prepareAs(principal, req)
	if s.reply.Keep < time.Second || s.reply.MRAddr == 0 || s.reply.MRRKey == 0 {
		e.t.Fatalf("not kept: %+v", s.reply)
	}
	s.connect()
	return s
}

// next is a good NEXT with the session's next number.
func (s *serverSession) next(op rc.Op, target string, size int64) token.NextRequest {
	s.e.t.Helper()
	t, err := token.ParseTarget(target)
	if err != nil {
		s.e.t.Fatal(err)
	}
	s.seq++
	s.req.Cookie, s.req.Op, s.req.Size = rand.Uint32()|1, op, size
	n := token.NextRequest{Session: s.reply.Session, Seq: s.seq, Cookie: s.req.Cookie, Op: op, Target: t, Size: size}
	if op == rc.OpGet {
		n.MRAddr, n.MRRKey = s.mr.Addr(), s.mr.RKey()
	}
	return n
}

func (s *serverSession) nextPut(target string, data []byte) token.Final {
	s.e.t.Helper()
	copy(s.mr.Bytes(), data)
	n := s.next(rc.OpPut, target, int64(len(data)))
	s.write(nil) // at once: there is no grace
	f := s.final(s.e.must(token.PathNext, n.Header()))
	if wc := s.completion(); wc.Status != verbs.WCSuccess {
		s.e.t.Fatalf("write: %v", wc.Status)
	}
	return f
}

func (s *serverSession) nextGet(target string, size int64) []byte {
	s.e.t.Helper()
	s.receive()
	f := s.final(s.e.must(token.PathNext, s.next(rc.OpGet, target, size).Header()))
	wc := s.completion()
	if wc.Status != verbs.WCSuccess || wc.Imm != s.req.Cookie || int64(wc.ByteLen) != f.Bytes {
		s.e.t.Fatalf("completion %+v, FINAL %+v", wc, f)
	}
	return s.mr.Bytes()[:f.Bytes]
}

func TestServerKeptSession(t *testing.T) {
	e := startServer(t, serverConfig{})
	s := e.openKept(1 << 20)
	for i := range 20 {
		data := randomBytes(uint64(i), 1+i*50_000)
		if f := s.nextPut("/b/k", data); f.Bytes != int64(len(data)) || f.ETag != etagOf(data) {
			t.Fatalf("PUT %d: %+v", i, f)
		}
		if got := s.nextGet("/b/k", 1<<20); !bytes.Equal(got, data) {
			t.Fatalf("GET %d: got something else", i)
		}
	}
	if st := e.srv.Stats(); st.Sessions != 1 || st.KeptSessions != 1 || st.Prepared != 1 || st.Got != 20 || st.Put != 20 {
		t.Errorf("%+v", st)
	}
	e.expect("CANCEL", e.must(token.PathCancel, s.ready().Header()), 200, "")
	e.gone()
	e.expect("NEXT after CANCEL", e.must(token.PathNext, s.next(rc.OpPut, "/b/k", 1).Header()), 404, "NoSuchRdmaSession")
}

// Refusals that change nothing.
func TestServerNextRefusedKept(t *testing.T) {
	e := startServer(t, serverConfig{})
	s := e.openKept(1 << 20)
	s.nextPut("/b/k", []byte("one"))
	again := s.next(rc.OpPut, "/b/k", 3)
	s.seq--
	for _, seq := range []uint32{1, 3, 4, 1 << 31} {
		n := again
		n.Seq = seq
		e.expect("wrong number", e.must(token.PathNext, n.Header()), 409, "RdmaSequenceConflict")
	}
	e.expect("foreign NEXT", e.mustAs("bob", token.PathNext, again.Header()), 404, "NoSuchRdmaSession")
	h := again.Header()
	h.Del(token.HeaderTarget)
	e.expect("malformed NEXT", e.must(token.PathNext, h), 400, "InvalidRdmaRequest")
	e.expect("READY on a kept session", e.must(token.PathReady, s.ready().Header()), 409, "RdmaSessionConflict")
	s.nextPut("/b/k", []byte("two"))

	n := s.next(rc.OpPut, "/b/k", 5)
	pending := e.start(token.PathNext, n.Header())
	s.claimed()
	e.expect("NEXT while one runs", e.must(token.PathNext, n.Header()), 409, "RdmaSessionConflict")
	copy(s.mr.Bytes(), "three")
	s.write(nil)
	s.final(pending.wait())
	s.completion()
	if got := s.nextGet("/b/k", 10); string(got) != "three" {
		t.Errorf("got %q", got)
	}
	ordinary := e.open(rc.OpPut, "/b/k", 1)
	n.Session = ordinary.reply.Session
	e.expect("NEXT on an ordinary session", e.must(token.PathNext, n.Header()), 404, "NoSuchRdmaSession")
}

// Any error after the claim ends the session, before it is answered.
func TestServerNextErrorEnds(t *testing.T) {
	for _, c := range []struct {
		name   string
		op     rc.Op
		target string
		edit   func(*serverSession, *token.NextRequest)
		status int
		code   string
	}{
		{"over the capacity", rc.OpPut, "/b/k", func(_ *serverSession, n *token.NextRequest) { n.Size = 1<<20 + 1 }, 413, "EntityTooLarge"},
		{"cookie of the transfer before", rc.OpGet, "/b/k", func(s *serverSession, n *token.NextRequest) { n.Cookie = s.reply.PSN }, 400, "InvalidRdmaRequest"},
		{"access denied", rc.OpGet, "/b/secret", nil, 403, "AccessDenied"},
		{"no such key", rc.OpGet, "/b/missing", nil, 404, "NoSuchKey"},
		{"range", rc.OpGet, "/b/k", func(_ *serverSession, n *token.NextRequest) { n.Offset = 1000 }, 416, "InvalidRange"},
		{"query", rc.OpGet, "/b/k?acl=", nil, 501, "NotImplemented"},
		{"precondition of a GET", rc.OpGet, "/b/k", func(_ *serverSession, n *token.NextRequest) { n.IfMatch = "x" }, 412, "PreconditionFailed"},
		{"wrong rkey", rc.OpGet, "/b/k", func(_ *serverSession, n *token.NextRequest) { n.MRRKey ^= 0x100 }, 502, "RdmaTransferFailed"},
		{"wrong immediate", rc.OpPut, "/b/k", func(s *serverSession, n *token.NextRequest) {
			s.write(func(wr *verbs.SendWR) { wr.Imm ^= 2 })
		}, 502, "RdmaTransferFailed"},
		{"write of another length", rc.OpPut, "/b/k", func(s *serverSession, n *token.NextRequest) {
			s.write(func(wr *verbs.SendWR) { wr.SGEs[0].Length-- })
		}, 502, "RdmaTransferFailed"},
		{"write during a GET", rc.OpGet, "/b/k", func(s *serverSession, n *token.NextRequest) {
			s.write(nil)
			s.completion()
		}, 502, "RdmaTransferFailed"},
		{"nothing written", rc.OpPut, "/b/k", nil, 408, "RequestTimeout"},
		{"precondition of a PUT", rc.OpPut, "/b/k", func(s *serverSession, n *token.NextRequest) {
			n.IfNoneMatch = "*"
			s.write(nil)
		}, 412, "PreconditionFailed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := startServer(t, serverConfig{edit: func(o *rc.ServerOptions) { o.ExecTimeout = 200 * time.Millisecond }})
			e.objects.authorize = func(_ rc.Principal, _ rc.Op, target token.Target) error {
				if target.Key == "secret" {
					return &rc.S3Error{Status: http.StatusForbidden, Code: "AccessDenied"}
				}
				return nil
			}
			s := e.openKept(1 << 20)
			first := s.next(rc.OpPut, "/b/k", 1000)
			first.Cookie = s.reply.PSN
			s.write(func(wr *verbs.SendWR) { wr.Imm = first.Cookie })
			e.expect("first transfer", e.must(token.PathNext, first.Header()), 200, "")
			s.completion()
			before, _ := e.objects.get("/b/k")

			if c.op == rc.OpGet {
				s.receive()
			}
			n := s.next(c.op, c.target, 1000)
			if c.edit != nil {
				c.edit(s, &n)
			}
			e.expect("NEXT", e.must(token.PathNext, n.Header()), c.status, c.code)
			if st := e.srv.Stats(); st.Sessions != 0 || st.StagingInUse != 0 {
				t.Errorf("answered before the session ended: %+v", st)
			}
			if after, _ := e.objects.get("/b/k"); !bytes.Equal(after.data, before.data) {
				t.Error("stored")
			}
			e.expect("NEXT afterwards", e.must(token.PathNext, s.next(rc.OpPut, "/b/k", 1).Header()), 404, "NoSuchRdmaSession")
		})
	}
}

func TestServerKeptIdleLimit(t *testing.T) {
	e := startServer(t, serverConfig{edit: func(o *rc.ServerOptions) { o.KeepIdle = time.Second }})
	s := e.openKept(1 << 20)
	s.nextPut("/b/k", []byte("x"))
	e.gone()
	e.expect("NEXT", e.must(token.PathNext, s.next(rc.OpPut, "/b/k", 1).Header()), 404, "NoSuchRdmaSession")
}

// Idle kept sessions make room, the oldest first.
func TestServerKeptEviction(t *testing.T) {
	e := startServer(t, serverConfig{edit: func(o *rc.ServerOptions) {
		o.Sessions, o.SessionsPerPrincipal, o.StagingBytes, o.MaxTransfer = 4, 2, 4<<20, 2<<20
	}})
	a, b := e.openKept(1<<20), e.openKept(1<<20)
	a.nextPut("/b/k", []byte("a is the younger one now"))
	c := e.openKept(1 << 20)
	e.expect("evicted", e.must(token.PathNext, b.next(rc.OpPut, "/b/k", 1).Header()), 404, "NoSuchRdmaSession")
	a.nextPut("/b/k", []byte("a"))
	c.nextPut("/b/k", []byte("c"))
	// Two of 1 MiB are there; a third and fourth principal need all of the memory.
	e.openKeptAs("bob", 2<<20)
	e.openKeptAs("carol", 2<<20)
	e.eventually("alice's are gone", func() bool { return e.srv.Stats().KeptSessions == 2 })
	if st := e.srv.Stats(); st.StagingBytes > 4<<20 {
		t.Errorf("%+v", st)
	}
}

// A session that a transfer runs on is not evicted, and ends after CANCEL.
func TestServerKeptBusy(t *testing.T) {
	e := startServer(t, serverConfig{edit: func(o *rc.ServerOptions) { o.SessionsPerPrincipal = 1 }})
	s := e.openKept(1 << 20)
	n := s.next(rc.OpPut, "/b/k", 4)
	pending := e.start(token.PathNext, n.Header())
	s.claimed()
	e.expect("no room", e.must(token.PathPrepare, s.request(rc.OpPut, "/b/k", 1).Header()), 503, "SlowDown")
	e.expect("CANCEL", e.must(token.PathCancel, s.ready().Header()), 200, "")
	copy(s.mr.Bytes(), "data")
	s.write(nil)
	s.final(pending.wait())
	e.gone()
	if o, _ := e.objects.get("/b/k"); string(o.data) != "data" {
		t.Errorf("stored %q", o.data)
	}
}
