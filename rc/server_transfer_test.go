package rc_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"s3rdmafs/rc"
	"s3rdmafs/token"
	"s3rdmafs/verbs"
	"s3rdmafs/verbs/shm"
)

func TestServerPutAndGet(t *testing.T) {
	e := startServer(t, serverConfig{server: &shm.Faults{Seed: 1, Piece: 4096}})
	for _, size := range []int{1, 4095, 4096, 64 << 10, 1<<20 + 1} {
		data := randomBytes(uint64(size), size)
		f := e.put("/b/k", data)
		if f.Bytes != int64(size) || f.ETag != etagOf(data) || f.HasCRC64 {
			t.Errorf("%d bytes: FINAL of PUT %+v", size, f)
		}
		o, _ := e.objects.get("/b/k")
		if !bytes.Equal(o.data, data) {
			t.Fatalf("%d bytes: stored something else", size)
		}
		got, f := e.open(rc.OpGet, "/b/k", int64(size)).finishGet()
		if !bytes.Equal(got, data) || f.ETag != etagOf(data) {
			t.Errorf("%d bytes: got something else, FINAL %+v", size, f)
		}
	}
	e.gone()
	if st := e.srv.Stats(); st.Got != 5 || st.Put != 5 || st.Prepared != 10 || st.Failed != 0 || st.BytesGot != st.BytesPut {
		t.Errorf("%+v", st)
	}
}

func TestServerGetRanges(t *testing.T) {
	e := startServer(t, serverConfig{})
	data := randomBytes(1, 100_000)
	e.objects.put("/b/k", data)
	for _, r := range []struct{ off, size, want int64 }{
		{0, 10, 10}, {1, 4096, 4096}, {4095, 50_000, 50_000}, {99_999, 1, 1}, {99_999, 1000, 1}, {50_000, 1 << 20, 50_000},
	} {
		p := e.newPeer(int(r.size))
		req := p.request(rc.OpGet, "/b/k", r.size)
		req.Offset = r.off
		s := p.prepare(req)
		s.connect()
		s.receive()
		got, f := s.finishGet()
		if f.Bytes != r.want || !bytes.Equal(got, data[r.off:r.off+r.want]) {
			t.Errorf("%+v: %d bytes", r, f.Bytes)
		}
	}
}

// The extension "ep": the write may come before READY.
func TestServerEarlyWrite(t *testing.T) {
	e := startServer(t, serverConfig{})
	data := randomBytes(1, 10_000)
	s := e.open(rc.OpPut, "/b/k", int64(len(data)))
	copy(s.mr.Bytes(), data)
	s.write(nil)
	if wc := s.completion(); wc.Status != verbs.WCSuccess {
		t.Fatalf("write before READY: %v", wc.Status)
	}
	if _, ok := e.objects.get("/b/k"); ok {
		t.Error("stored before READY")
	}
	s.final(e.must(token.PathReady, s.ready().Header()))
	if o, _ := e.objects.get("/b/k"); !bytes.Equal(o.data, data) {
		t.Error("stored something else")
	}
}

// A peer whose token has no QP number is paired in READY.
func TestServerLatePairing(t *testing.T) {
	e := startServer(t, serverConfig{})
	data := randomBytes(1, 10_000)
	p := e.newPeer(len(data))
	copy(p.mr.Bytes(), data)
	req := p.request(rc.OpPut, "/b/k", int64(len(data)))
	req.Token.QPNum = 0
	s := p.prepare(req)
	s.connect()
	s.finishPut()
	if o, _ := e.objects.get("/b/k"); !bytes.Equal(o.data, data) {
		t.Error("stored something else")
	}
}

// The zero token means the server's own adapter.
func TestServerZeroToken(t *testing.T) {
	e := startServer(t, serverConfig{})
	data := randomBytes(1, 10_000)
	e.objects.put("/b/k", data)
	pd, err := e.dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	pool, err := verbs.NewPool(e.dev, verbs.PoolOptions{PD: pd, Port: 1, MaxQPs: 1, CQs: 1, CQDepth: 16, Cap: verbs.QPCap{MaxSendWR: 2, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1}, Access: verbs.AccessRemoteWrite})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(pool.Close(), pd.Close()); err != nil {
			t.Error(err)
		}
	})
	p := e.newPeerOn(pool, pd, e.gid, len(data))
	req := p.request(rc.OpGet, "/b/k", int64(len(data)))
	req.Token = token.Token{}
	s := p.prepare(req)
	s.connect()
	s.receive()
	if got, _ := s.finishGet(); !bytes.Equal(got, data) {
		t.Error("got something else")
	}
}

func TestServerChecksum(t *testing.T) {
	e := startServer(t, serverConfig{})
	data := []byte("123456789")
	p := e.newPeer(len(data))
	copy(p.mr.Bytes(), data)
	req := p.request(rc.OpPut, "/b/k", int64(len(data)))
	req.ChecksumAlgorithm = token.AlgorithmCRC64NVME
	s := p.prepare(req)
	s.connect()
	if f := s.finishPut(); !f.HasCRC64 || f.CRC64 != 0xae8b14860a799888 {
		t.Errorf("%+v", f)
	}
	g := e.open(rc.OpGet, "/b/k", 9)
	ready := g.ready()
	ready.ChecksumAlgorithm = token.AlgorithmCRC64NVME
	if f := g.final(e.must(token.PathReady, ready.Header())); f.CRC64 != 0xae8b14860a799888 {
		t.Errorf("%+v", f)
	}
}

func TestServerPartsVersionsAndMetadata(t *testing.T) {
	e := startServer(t, serverConfig{})
	data := randomBytes(1, 1000)
	e.put("/b/k?partNumber=7&uploadId=a%2Fb", data)
	if o, ok := e.objects.get("/b/k?partNumber=7&uploadId=a%2Fb"); !ok || !bytes.Equal(o.data, data) {
		t.Error("part is not there")
	}
	if _, ok := e.objects.get("/b/k"); ok {
		t.Error("part stored as the object")
	}
	e.objects.put("/b/k?versionId=v1", data)
	if got, f := e.open(rc.OpGet, "/b/k?versionId=v1", 1000).finishGet(); !bytes.Equal(got, data) || f.VersionID != "v1" {
		t.Errorf("version: %+v", f)
	}
	p := e.newPeer(10)
	req := p.request(rc.OpPut, "/b/m", 10)
	req.ContentType, req.Meta = "text/plain", map[string]string{"mtime": "1.5", "ü": ""}
	e.expect("bad metadata name", e.must(token.PathPrepare, req.Header()), 400, "InvalidRdmaRequest")
	req.Meta = map[string]string{"mtime": "1.5", "note": "ü &="}
	s := p.prepare(req)
	s.connect()
	s.finishPut()
	if o, _ := e.objects.get("/b/m"); o.contentType != "text/plain" || o.meta["mtime"] != "1.5" || o.meta["note"] != "ü &=" || len(o.meta) != 2 {
		t.Errorf("%+v", o)
	}
	h := p.request(rc.OpPut, "/b/m", 10).Header()
	h.Set(token.HeaderMeta, "a="+strings.Repeat("x", token.MaxMeta))
	e.expect("too much metadata", e.must(token.PathPrepare, h), 400, "MetadataTooLarge")
}

func TestServerConditions(t *testing.T) {
	e := startServer(t, serverConfig{})
	data := randomBytes(1, 1000)
	e.objects.put("/b/k", data)
	put := func(edit func(*token.PrepareRequest)) answer {
		p := e.newPeer(len(data))
		req := p.request(rc.OpPut, "/b/k", int64(len(data)))
		edit(&req)
		s := p.prepare(req)
		s.connect()
		ready := e.start(token.PathReady, s.ready().Header())
		s.write(nil)
		return ready.wait()
	}
	e.expect("create over an object", put(func(r *token.PrepareRequest) { r.IfNoneMatch = "*" }), 412, "PreconditionFailed")
	e.expect("replace another version", put(func(r *token.PrepareRequest) { r.IfMatch = "other" }), 412, "PreconditionFailed")
	if o, _ := e.objects.get("/b/k"); !bytes.Equal(o.data, data) {
		t.Error("stored against a condition")
	}
	e.expect("replace this version", put(func(r *token.PrepareRequest) { r.IfMatch = etagOf(data) }), 200, "")
	p := e.newPeer(1)
	req := p.request(rc.OpGet, "/b/k", 1)
	req.IfMatch = etagOf(data)
	e.expect("GET of the version before", e.must(token.PathPrepare, req.Header()), 412, "PreconditionFailed")
	e.gone()
}

// The acknowledgement of a PUT gets lost: the client's adapter asks again after
// FINAL, and must be answered.
func TestServerLostAcknowledgement(t *testing.T) {
	var lost atomic.Bool
	hook := func(p shm.Point, _ shm.Write) shm.Verdict {
		return shm.Verdict{Drop: p == shm.PointAck && lost.CompareAndSwap(false, true)}
	}
	e := startServer(t, serverConfig{server: &shm.Faults{Hook: hook}, edit: func(o *rc.ServerOptions) { o.Linger = time.Hour }})
	s := e.open(rc.OpPut, "/b/k", 4096)
	ready := e.start(token.PathReady, s.ready().Header())
	s.write(nil)
	s.final(ready.wait())
	if wc := s.completion(); wc.Status != verbs.WCSuccess {
		t.Errorf("write: %v", wc.Status)
	}
	if !lost.Load() {
		t.Error("nothing was lost")
	}
	e.expect("READY afterwards", e.must(token.PathReady, s.ready().Header()), 404, "NoSuchRdmaSession")
	e.expect("CANCEL afterwards", e.must(token.PathCancel, s.ready().Header()), 200, "")
	e.gone()
}

// What the client writes must be what it announced, or nothing is stored.
func TestServerWrongWrites(t *testing.T) {
	const size = 8192
	for name, edit := range map[string]func(*verbs.SendWR){
		"immediate":   func(wr *verbs.SendWR) { wr.Imm ^= 1 },
		"short":       func(wr *verbs.SendWR) { wr.SGEs[0].Length = size - 1 },
		"long":        func(wr *verbs.SendWR) { wr.SGEs[0].Length = size + 1 },
		"zero length": func(wr *verbs.SendWR) { wr.SGEs = nil },
	} {
		t.Run(name, func(t *testing.T) {
			e := startServer(t, serverConfig{})
			p := e.newPeer(2 * size)
			s := p.prepare(p.request(rc.OpPut, "/b/k", size))
			s.connect()
			ready := e.start(token.PathReady, s.ready().Header())
			s.write(edit)
			e.expect("FINAL", ready.wait(), 502, "RdmaTransferFailed")
			e.gone()
			if _, ok := e.objects.get("/b/k"); ok {
				t.Error("stored")
			}
			e.expect("READY afterwards", e.must(token.PathReady, s.ready().Header()), 404, "NoSuchRdmaSession")
			if st := e.srv.Stats(); st.Failed != 1 || st.Put != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
	t.Run("two halves", func(t *testing.T) {
		e := startServer(t, serverConfig{})
		s := e.open(rc.OpPut, "/b/k", size)
		ready := e.start(token.PathReady, s.ready().Header())
		s.write(func(wr *verbs.SendWR) { wr.Opcode, wr.SGEs[0].Length = verbs.OpWrite, size/2 })
		s.write(func(wr *verbs.SendWR) { wr.SGEs[0].Length, wr.RemoteAddr = size/2, wr.RemoteAddr+size/2 })
		e.expect("FINAL", ready.wait(), 502, "RdmaTransferFailed")
		if _, ok := e.objects.get("/b/k"); ok {
			t.Error("stored")
		}
	})
}

func TestServerPutNotWritten(t *testing.T) {
	quick := serverConfig{edit: func(o *rc.ServerOptions) { o.ExecTimeout = 20 * time.Millisecond }}
	t.Run("nothing", func(t *testing.T) {
		e := startServer(t, quick)
		s := e.open(rc.OpPut, "/b/k", 4096)
		e.expect("FINAL", e.must(token.PathReady, s.ready().Header()), 408, "RequestTimeout")
		e.gone()
	})
	t.Run("plain write", func(t *testing.T) {
		e := startServer(t, quick)
		s := e.open(rc.OpPut, "/b/k", 4096)
		s.write(func(wr *verbs.SendWR) { wr.Opcode = verbs.OpWrite })
		if wc := s.completion(); wc.Status != verbs.WCSuccess {
			t.Errorf("plain write: %v", wc.Status)
		}
		e.expect("FINAL", e.must(token.PathReady, s.ready().Header()), 408, "RequestTimeout")
		e.gone()
		if _, ok := e.objects.get("/b/k"); ok {
			t.Error("stored")
		}
	})
}

func TestServerGetFailures(t *testing.T) {
	data := randomBytes(1, 100_000)
	quick := serverConfig{edit: func(o *rc.ServerOptions) { o.ExecTimeout = 50 * time.Millisecond }}
	t.Run("wrong rkey", func(t *testing.T) {
		e := startServer(t, serverConfig{})
		e.objects.put("/b/k", data)
		s := e.open(rc.OpGet, "/b/k", int64(len(data)))
		r := s.ready()
		r.MRRKey ^= 0x100
		e.expect("FINAL", e.must(token.PathReady, r.Header()), 502, "RdmaTransferFailed")
		e.gone()
	})
	t.Run("region too short", func(t *testing.T) {
		e := startServer(t, serverConfig{})
		e.objects.put("/b/k", data)
		p := e.newPeer(4096)
		s := p.prepare(p.request(rc.OpGet, "/b/k", int64(len(data))))
		s.connect()
		s.receive()
		e.expect("FINAL", e.must(token.PathReady, s.ready().Header()), 502, "RdmaTransferFailed")
		e.gone()
	})
	t.Run("no receive", func(t *testing.T) {
		e := startServer(t, quick)
		e.objects.put("/b/k", data)
		p := e.newPeer(len(data))
		s := p.prepare(p.request(rc.OpGet, "/b/k", int64(len(data))))
		s.connect()
		e.expect("FINAL", e.must(token.PathReady, s.ready().Header()), 408, "RequestTimeout")
		e.gone()
	})
	t.Run("QP never leaves INIT", func(t *testing.T) {
		e := startServer(t, quick)
		e.objects.put("/b/k", data)
		p := e.newPeer(len(data))
		s := p.prepare(p.request(rc.OpGet, "/b/k", int64(len(data))))
		e.expect("FINAL", e.must(token.PathReady, s.ready().Header()), 408, "RequestTimeout")
		e.gone()
	})
	t.Run("client is gone", func(t *testing.T) {
		e := startServer(t, quick)
		e.objects.put("/b/k", data)
		s := e.open(rc.OpGet, "/b/k", int64(len(data)))
		r := s.ready().Header()
		s.close()
		if a := e.must(token.PathReady, r); a.status != 408 && a.status != 502 {
			t.Errorf("FINAL: %v", a)
		}
		e.gone()
	})
	t.Run("reading fails", func(t *testing.T) {
		e := startServer(t, serverConfig{})
		e.objects.opened = func() error { return errors.New("disk on fire") }
		e.expect("PREPARE", e.must(token.PathPrepare, e.newPeer(1).request(rc.OpGet, "/b/k", 1).Header()), 500, "InternalError")
		e.gone()
	})
}

// A client that closes READY's connection has given up: its session must not
// hold memory until T_exec.
func TestServerReadyConnectionLost(t *testing.T) {
	e := startServer(t, serverConfig{edit: func(o *rc.ServerOptions) { o.ExecTimeout = time.Hour }})
	s := e.open(rc.OpPut, "/b/k", 4096)
	ctx, cancel := context.WithCancel(t.Context())
	ready := e.startCtx(ctx, token.PathReady, s.ready().Header())
	s.claimed()
	cancel()
	<-ready.done
	e.gone()
	if _, ok := e.objects.get("/b/k"); ok {
		t.Error("stored")
	}
}

func TestServerStoreFails(t *testing.T) {
	e := startServer(t, serverConfig{})
	e.objects.storing = func() error {
		return &rc.S3Error{Status: http.StatusInsufficientStorage, Code: "QuotaExceeded", Message: "<full>"}
	}
	s := e.open(rc.OpPut, "/b/k", 4096)
	ready := e.start(token.PathReady, s.ready().Header())
	s.write(nil)
	e.expect("FINAL", ready.wait(), http.StatusInsufficientStorage, "QuotaExceeded")
	e.gone()
}

// A packet of a session that ended reaches neither a buffer that was used again
// nor one that is idle.
func TestServerLateWrite(t *testing.T) {
	held, release := make(chan struct{}), make(chan struct{})
	var first = true
	hook := func(p shm.Point, w shm.Write) shm.Verdict {
		if p == shm.PointReceived && first {
			first = false
			close(held)
			<-release
		}
		return shm.Verdict{}
	}
	e := startServer(t, serverConfig{server: &shm.Faults{Hook: hook}, edit: func(o *rc.ServerOptions) { o.ExecTimeout = 20 * time.Millisecond }})
	s := e.open(rc.OpPut, "/b/late", 4096)
	copy(s.mr.Bytes(), bytes.Repeat([]byte("late"), 1024))
	s.write(nil)
	<-held
	e.expect("FINAL", e.must(token.PathReady, s.ready().Header()), 408, "RequestTimeout")

	data := randomBytes(2, 4096)
	n := e.open(rc.OpPut, "/b/new", 4096)
	if n.reply.MRRKey == s.reply.MRRKey {
		t.Error("the rkey of a failed session is in use again")
	}
	copy(n.mr.Bytes(), data)
	n.write(nil)
	close(release)
	if wc := s.completion(); wc.Status == verbs.WCSuccess {
		t.Error("late write succeeded")
	}
	if wc := n.completion(); wc.Status != verbs.WCSuccess {
		t.Errorf("write: %v", wc.Status)
	}
	n.final(e.must(token.PathReady, n.ready().Header()))
	if o, _ := e.objects.get("/b/new"); !bytes.Equal(o.data, data) {
		t.Error("late write reached another session's buffer")
	}
	if _, ok := e.objects.get("/b/late"); ok {
		t.Error("late write was stored")
	}
}

// A client that knows the rkey of an ended session has no way to use it.
func TestServerStaleRKey(t *testing.T) {
	e := startServer(t, serverConfig{edit: func(o *rc.ServerOptions) { o.PrepareTimeout = 20 * time.Millisecond }})
	stale := e.open(rc.OpPut, "/b/k", 4096)
	e.gone() // by T_prep
	p := e.newPeer(4096)
	s := p.prepareAs("mallory", p.request(rc.OpPut, "/b/k", 4096))
	s.connect()
	s.write(func(wr *verbs.SendWR) { wr.RemoteAddr, wr.RKey = stale.reply.MRAddr, stale.reply.MRRKey })
	if wc := s.completion(); wc.Status == verbs.WCSuccess {
		t.Error("write with the rkey of an ended session succeeded")
	}
	e.gone()
}
