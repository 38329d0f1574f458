package rc_test

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"s3rdmafs/internal/testdevice"
	"s3rdmafs/rc"
	"s3rdmafs/token"
	"s3rdmafs/verbs"
	"s3rdmafs/verbs/shm"
)

// patience bounds every wait of the server's tests; nothing takes as long.
const patience = 30 * time.Second

// memObjects is a store in memory. Its hooks must be set before requests run.
type memObjects struct {
	authorize func(rc.Principal, rc.Op, token.Target) error
	opened    func() error // before an object is opened
	storing   func() error // before an object is stored

	mu      sync.Mutex
	objects map[string]memObject
}

type memObject struct {
	data        []byte
	etag        string
	meta        map[string]string
	contentType string
}

func newMemObjects() *memObjects {
	return &memObjects{objects: make(map[string]memObject)}
}

func etagOf(data []byte) string {
	sum := md5.Sum(data)
	return hex.EncodeToString(sum[:])
}

func (m *memObjects) put(target string, data []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.objects[target] = memObject{data: bytes.Clone(data), etag: etagOf(data)}
}

func (m *memObjects) get(target string) (memObject, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o, ok := m.objects[target]
	return o, ok
}

func (m *memObjects) Authorize(_ context.Context, p rc.Principal, op rc.Op, t token.Target) error {
	if t.Bucket == "missing" {
		return &rc.S3Error{Status: http.StatusNotFound, Code: "NoSuchBucket"}
	}
	if m.authorize != nil {
		return m.authorize(p, op, t)
	}
	return nil
}

func (m *memObjects) OpenRange(_ context.Context, _ rc.Principal, t token.Target, off, size int64, c rc.Conditions) (rc.Range, error) {
	if off < 0 || size <= 0 || off+size < 0 {
		return rc.Range{}, fmt.Errorf("range of %d bytes at %d", size, off)
	}
	if m.opened != nil {
		if err := m.opened(); err != nil {
			return rc.Range{}, err
		}
	}
	o, ok := m.get(t.Encode())
	switch {
	case !ok:
		return rc.Range{}, &rc.S3Error{Status: http.StatusNotFound, Code: "NoSuchKey"}
	case c.IfMatch != "" && c.IfMatch != "*" && c.IfMatch != o.etag:
		return rc.Range{}, &rc.S3Error{Status: http.StatusPreconditionFailed, Code: "PreconditionFailed"}
	case off >= int64(len(o.data)):
		return rc.Range{}, &rc.S3Error{Status: http.StatusRequestedRangeNotSatisfiable, Code: "InvalidRange"}
	}
	data := o.data[off:min(off+size, int64(len(o.data)))]
	return rc.Range{Size: int64(len(data)), ETag: o.etag, VersionID: t.VersionID, Reader: io.NopCloser(bytes.NewReader(data))}, nil
}

func (m *memObjects) Store(ctx context.Context, _ rc.Principal, t token.Target, data []byte, o rc.StoreOptions) (rc.Stored, error) {
	if m.storing != nil {
		if err := m.storing(); err != nil {
			return rc.Stored{}, err
		}
	}
	if err := ctx.Err(); err != nil {
		return rc.Stored{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old, exists := m.objects[t.Encode()]
	if o.IfNoneMatch == "*" && exists || o.IfMatch != "" && o.IfMatch != old.etag {
		return rc.Stored{}, &rc.S3Error{Status: http.StatusPreconditionFailed, Code: "PreconditionFailed"}
	}
	stored := memObject{data: bytes.Clone(data), etag: etagOf(data), meta: o.Meta, contentType: o.ContentType}
	m.objects[t.Encode()] = stored
	return rc.Stored{ETag: stored.etag}, nil
}

// serverEnv is a server on a software device behind net/http, and a second
// device for its clients. At the end of the test everything is closed, and
// must let itself be closed: nothing may be left over.
type serverEnv struct {
	t       testing.TB
	objects *memObjects
	srv     *rc.Server
	http    *httptest.Server
	dev     verbs.Device // the server's
	gid     verbs.GIDEntry

	cpd   verbs.PD
	cpool *verbs.Pool
	cgid  verbs.GIDEntry

	closed bool
}

type serverConfig struct {
	edit   func(*rc.ServerOptions)
	server *shm.Faults
	maxQPs int
}

func openServerDevice(t testing.TB, faults *shm.Faults, maxQPs int) (verbs.Device, verbs.PD, *verbs.Pool, verbs.GIDEntry) {
	t.Helper()
	dev := testdevice.Open(t, faults)
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	pool, err := verbs.NewPool(dev, verbs.PoolOptions{
		PD: pd, Port: 1, MaxQPs: maxQPs, CQs: 1, CQDepth: 4 * maxQPs,
		Cap:    verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1},
		Access: verbs.AccessRemoteWrite,
	})
	if err != nil {
		t.Fatal(err)
	}
	return dev, pd, pool, testdevice.GID(t, dev)
}

func startServer(t testing.TB, c serverConfig) *serverEnv {
	t.Helper()
	if c.maxQPs == 0 {
		c.maxQPs = 64
	}
	e := &serverEnv{t: t, objects: newMemObjects()}
	dev, pd, pool, gid := openServerDevice(t, c.server, c.maxQPs)
	e.dev, e.gid = dev, gid
	_, e.cpd, e.cpool, e.cgid = openServerDevice(t, nil, 64)
	o := rc.ServerOptions{Pool: pool, PD: pd, GIDIndex: gid.Index, GID: gid.GID, Objects: e.objects, MaxTransfer: 8 << 20, StagingBytes: 64 << 20}
	if c.edit != nil {
		c.edit(&o)
	}
	srv, err := rc.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	e.srv = srv
	e.http = httptest.NewServer(srv.Handler(func(r *http.Request) (rc.Principal, error) {
		id := r.Header.Get(principalHeader)
		if id == "" {
			return rc.Principal{}, &rc.S3Error{Status: http.StatusForbidden, Code: "AccessDenied"}
		}
		return rc.Principal{ID: id}, nil
	}))
	t.Cleanup(func() {
		if !e.closed {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if err := srv.Close(ctx); err != nil {
				t.Errorf("close server: %v", err)
			}
		}
		e.http.Close()
		for name, close := range map[string]func() error{"server": pool.Close, "client": e.cpool.Close} {
			if err := close(); err != nil {
				t.Errorf("close %s's pool: %v", name, err)
			}
		}
		if st := srv.Stats(); st.Sessions != 0 || st.StagingInUse != 0 || st.StagingBytes != 0 || st.Quarantined != 0 {
			t.Errorf("left after Close: %+v", st)
		}
		for name, close := range map[string]func() error{"server's PD": pd.Close, "client's PD": e.cpd.Close} {
			if err := close(); err != nil {
				t.Errorf("close %s: %v", name, err)
			}
		}
	})
	return e
}

const principalHeader = "X-Test-Principal"

// answer is what came back by HTTP.
type answer struct {
	status int
	header http.Header
	code   string // of an error body
}

func (a answer) String() string { return fmt.Sprintf("%d %s", a.status, a.code) }

// post sends a control request; principal "" is anonymous.
func (e *serverEnv) post(ctx context.Context, principal, path string, h http.Header) (answer, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, e.http.URL+path, http.NoBody)
	if err != nil {
		return answer{}, err
	}
	r.Header = h.Clone()
	if principal != "" {
		r.Header.Set(principalHeader, principal)
	}
	resp, err := e.http.Client().Do(r)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, err
	}
	a := answer{status: resp.StatusCode, header: resp.Header}
	if caps := token.CapabilitiesOf(resp.Header); !caps.Has(token.CapMP | token.CapEP | token.CapBig | token.CapCond | token.CapCRC | token.CapKeep | token.CapMeta) {
		return a, fmt.Errorf("%s: capabilities are %q", path, caps)
	}
	if echo := resp.Header.Get(token.HeaderProtocol); echo != token.Protocol {
		return a, fmt.Errorf("%s: status %d with protocol %q", path, resp.StatusCode, echo)
	}
	if resp.StatusCode == http.StatusOK {
		if len(body) != 0 || resp.ContentLength != 0 {
			return a, fmt.Errorf("%s: success with %d bytes of body, headers %v", path, len(body), resp.Header)
		}
		return a, nil
	}
	var s3err struct {
		XMLName         xml.Name `xml:"Error"`
		Code, RequestId string
	}
	if err := xml.Unmarshal(body, &s3err); err != nil {
		return a, fmt.Errorf("%s: body of status %d: %w", path, resp.StatusCode, err)
	}
	if s3err.RequestId == "" || s3err.RequestId != resp.Header.Get("X-Amz-Request-Id") {
		return a, fmt.Errorf("%s: request id %q in the body", path, s3err.RequestId)
	}
	if marker := token.IsMarker(resp.Header); marker != (resp.StatusCode == http.StatusNotImplemented) {
		return a, fmt.Errorf("%s: status %d with marker %v", path, resp.StatusCode, marker)
	}
	a.code = s3err.Code
	return a, nil
}

func (e *serverEnv) must(path string, h http.Header) answer {
	e.t.Helper()
	return e.mustAs("alice", path, h)
}

func (e *serverEnv) mustAs(principal, path string, h http.Header) answer {
	e.t.Helper()
	a, err := e.post(e.t.Context(), principal, path, h)
	if err != nil {
		e.t.Fatal(err)
	}
	return a
}

// expect fails unless the answer has the status and, if given, the error code.
func (e *serverEnv) expect(what string, a answer, status int, code string) {
	e.t.Helper()
	if a.status != status || code != "" && a.code != code {
		e.t.Errorf("%s: %v, want %d %s", what, a, status, code)
	}
}

// eventually polls until ok.
func (e *serverEnv) eventually(what string, ok func() bool) {
	e.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			e.t.Fatalf("%s: not within %v; %+v", what, patience, e.srv.Stats())
		}
	}
}

// gone waits until the server holds no session and no staging memory in use.
func (e *serverEnv) gone() {
	e.t.Helper()
	e.eventually("sessions gone", func() bool {
		st := e.srv.Stats()
		return st.Sessions == 0 && st.StagingInUse == 0
	})
}

// peer is the client's end of one session, made of plain verbs so that it can do
// what no client does.
type serverPeer struct {
	e    *serverEnv
	conn *verbs.Conn
	mem  *verbs.Memory
	mr   verbs.MR
	gid  verbs.GIDEntry
}

// newPeer makes a QP and a registered buffer.
func (e *serverEnv) newPeer(size int) *serverPeer {
	return e.newPeerOn(e.cpool, e.cpd, e.cgid, size)
}

func (e *serverEnv) newPeerOn(pool *verbs.Pool, pd verbs.PD, gid verbs.GIDEntry, size int) *serverPeer {
	e.t.Helper()
	conn, err := pool.Get(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	mem, err := verbs.NewMemory("peer", size)
	if err != nil {
		e.t.Fatal(err)
	}
	mr, err := pd.RegMR(mem, 0, len(mem.Bytes()), verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	if err != nil {
		e.t.Fatal(err)
	}
	p := &serverPeer{e: e, conn: conn, mem: mem, mr: mr, gid: gid}
	e.t.Cleanup(p.close)
	return p
}

func (p *serverPeer) close() {
	if p.conn == nil {
		return
	}
	p.stop()
	if err := errors.Join(p.mr.Close(), p.mem.Close()); err != nil {
		p.e.t.Errorf("close peer's memory: %v", err)
	}
	p.conn = nil
}

// stop drains and recycles the QP.
func (p *serverPeer) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := p.conn.Release(ctx); err != nil {
		p.e.t.Errorf("release peer's QP: %v", err)
	}
}

func (p *serverPeer) token() token.Token {
	return token.Token{Transport: token.TransportRC, QPNum: p.conn.QPN(), GID: p.gid.GID, Port: 1}
}

// request is a good PREPARE.
func (p *serverPeer) request(op rc.Op, target string, size int64) token.PrepareRequest {
	p.e.t.Helper()
	t, err := token.ParseTarget(target)
	if err != nil {
		p.e.t.Fatal(err)
	}
	return token.PrepareRequest{Token: p.token(), PSN: p.conn.PSN(), Cookie: rand.Uint32() | 1, Op: op, Target: t, Size: size}
}

// serverSession is a prepared session and the peer that owns it.
type serverSession struct {
	*serverPeer
	req   token.PrepareRequest
	reply token.PrepareResponse
	seq   uint32
}

func (p *serverPeer) prepare(req token.PrepareRequest) *serverSession {
	p.e.t.Helper()
	return p.prepareAs("alice", req)
}

func (p *serverPeer) prepareAs(principal string, req token.PrepareRequest) *serverSession {
	p.e.t.Helper()
	a := p.e.mustAs(principal, token.PathPrepare, req.Header())
	return p.opened(req, a)
}

func (p *serverPeer) opened(req token.PrepareRequest, a answer) *serverSession {
	p.e.t.Helper()
	if a.status != http.StatusOK {
		p.e.t.Fatalf("PREPARE: %v", a)
	}
	reply, err := token.ParsePrepareResponse(a.header, req.Op)
	if err != nil {
		p.e.t.Fatal(err)
	}
	if exposed := reply.MRRKey != 0; exposed != (req.Keep || req.Op == rc.OpPut) {
		p.e.t.Errorf("staging buffer exposed: %v", exposed)
	}
	return &serverSession{serverPeer: p, req: req, reply: reply}
}

// open makes a peer, prepares a transfer and takes the peer to RTS; for a GET the
// receive is posted.
func (e *serverEnv) open(op rc.Op, target string, size int64) *serverSession {
	e.t.Helper()
	p := e.newPeer(max(int(size), 1))
	s := p.prepare(p.request(op, target, size))
	s.connect()
	if op == rc.OpGet {
		s.receive()
	}
	return s
}

func (s *serverSession) connect() {
	s.e.t.Helper()
	err := s.conn.Connect(verbs.ConnectAttr{
		DestQPN: s.reply.QPN, RQPSN: s.reply.PSN, DGID: s.reply.Token.GID, SGIDIndex: s.gid.Index, MTU: verbs.MTU4096, Port: 1,
	})
	if err != nil {
		s.e.t.Fatal(err)
	}
}

func (s *serverSession) receive() {
	s.e.t.Helper()
	if err := s.conn.PostRecv(verbs.RecvWR{ID: 7}); err != nil {
		s.e.t.Fatal(err)
	}
}

func (s *serverSession) ready() token.ReadyRequest {
	r := token.ReadyRequest{Session: s.reply.Session, Cookie: s.req.Cookie, QPN: s.conn.QPN()}
	if s.req.Op == rc.OpGet {
		r.MRAddr, r.MRRKey = s.mr.Addr(), s.mr.RKey()
	}
	return r
}

// claimed waits until a transfer of the session runs. Its own requests are such
// that they never claim the session.
func (s *serverSession) claimed() {
	s.e.t.Helper()
	s.e.eventually("transfer runs", func() bool {
		if s.req.Keep {
			n := token.NextRequest{Session: s.reply.Session, Seq: 1 << 31, Cookie: 1, Op: rc.OpPut, Target: s.req.Target, Size: 1}
			return s.e.must(token.PathNext, n.Header()).code == "RdmaSessionConflict"
		}
		r := s.ready()
		r.QPN ^= 1
		return s.e.must(token.PathReady, r.Header()).code == "RdmaSessionConflict"
	})
}

// write posts the write of a PUT, changed by edit.
func (s *serverSession) write(edit func(*verbs.SendWR)) {
	s.e.t.Helper()
	wr := verbs.SendWR{
		ID: 8, Opcode: verbs.OpWriteWithImm, Imm: s.req.Cookie, Signaled: true,
		SGEs:       []verbs.SGE{{Addr: s.mr.Addr(), Length: uint32(s.req.Size), LKey: s.mr.LKey()}},
		RemoteAddr: s.reply.MRAddr, RKey: s.reply.MRRKey,
	}
	if edit != nil {
		edit(&wr)
	}
	if err := s.conn.PostSend(wr); err != nil {
		s.e.t.Fatal(err)
	}
}

// completion waits for the peer's next completion.
func (s *serverSession) completion() verbs.WC {
	s.e.t.Helper()
	select {
	case wc := <-s.conn.Completions():
		return wc
	case <-time.After(patience):
		s.e.t.Fatal("no completion")
		return verbs.WC{}
	}
}

// pending is a request whose answer is awaited elsewhere.
type pending struct {
	e    *serverEnv
	done chan struct{}
	a    answer
	err  error
}

func (e *serverEnv) start(path string, h http.Header) *pending {
	return e.startCtx(e.t.Context(), path, h)
}

func (e *serverEnv) startCtx(ctx context.Context, path string, h http.Header) *pending {
	p := &pending{e: e, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.a, p.err = e.post(ctx, "alice", path, h)
	}()
	return p
}

func (p *pending) wait() answer {
	p.e.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.e.t.Fatal("no answer")
	}
	if p.err != nil {
		p.e.t.Fatal(p.err)
	}
	return p.a
}

// put is a whole PUT that must succeed.
func (e *serverEnv) put(target string, data []byte) token.Final {
	e.t.Helper()
	s := e.open(rc.OpPut, target, int64(len(data)))
	copy(s.mr.Bytes(), data)
	return s.finishPut()
}

func (s *serverSession) finishPut() token.Final {
	s.e.t.Helper()
	ready := s.e.start(token.PathReady, s.ready().Header())
	s.write(nil)
	if wc := s.completion(); wc.Status != verbs.WCSuccess {
		s.e.t.Fatalf("write: %v", wc.Status)
	}
	return s.final(ready.wait())
}

// final checks FINAL against the session's cookie.
func (s *serverSession) final(a answer) token.Final {
	s.e.t.Helper()
	if a.status != http.StatusOK {
		s.e.t.Fatalf("FINAL: %v", a)
	}
	f, err := token.ParseFinal(a.header)
	if err != nil {
		s.e.t.Fatal(err)
	}
	if f.Cookie != s.req.Cookie {
		s.e.t.Errorf("cookie %08x, want %08x", f.Cookie, s.req.Cookie)
	}
	return f
}

// finishGet runs READY and returns what landed.
func (s *serverSession) finishGet() ([]byte, token.Final) {
	s.e.t.Helper()
	f := s.final(s.e.must(token.PathReady, s.ready().Header()))
	wc := s.completion()
	if wc.Status != verbs.WCSuccess || wc.Opcode != verbs.WCRecvRDMAWithImm || wc.Imm != s.req.Cookie || int64(wc.ByteLen) != f.Bytes {
		s.e.t.Errorf("completion %+v, FINAL %+v", wc, f)
	}
	return s.mr.Bytes()[:f.Bytes], f
}

func randomBytes(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}
