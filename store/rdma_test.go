package store

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"

	"s3rdmafs/internal/faultproxy"
	"s3rdmafs/internal/testenv"
	"s3rdmafs/rc"
	"s3rdmafs/verbs"
)

// world is a gateway with RDMA, a client's device, and a store on both.
type world struct {
	env  *testenv.Env
	rdma *testenv.RDMA
	s    *Store
	b    string
}

func newWorld(t *testing.T, rdma bool, mode Mode, change func(*Options)) *world {
	t.Helper()
	env := testenv.Start(t, testenv.Options{RDMA: rdma})
	w := &world{env: env, rdma: testenv.NewRDMA(t), b: env.NewBucket("")}
	client := w.rdma.Client(env, env.AccessKey, env.SecretKey, nil)
	w.s = open(t, env, env.Endpoint, func(o *Options) {
		o.RDMA, o.Mode = client, mode
		if change != nil {
			change(o)
		}
	})
	return w
}

func TestRDMACarriesEligibleBytes(t *testing.T) {
	t.Parallel()
	for _, mode := range []Mode{ModeAuto, ModeRequire} {
		t.Run(mode.String(), func(t *testing.T) {
			w := newWorld(t, true, mode, func(o *Options) { o.RDMAChunkSize = 1 << 20 })
			ctx := context.Background()
			meta := map[string]string{"mtime": "1700000000", "mode": "33188"}
			var written, read int64
			for i, n := range []int{64 << 10, 64<<10 + 1, 1 << 20} {
				data := noise(n, uint64(n))
				seg := w.rdma.Segment(n, data)
				info, err := w.s.Put(ctx, PutRequest{Bucket: w.b, Key: "k", Src: seg, Meta: meta, ContentType: "text/x", Cond: Cond{IfAbsent: i == 0}})
				if err != nil {
					t.Fatal(err)
				}
				h, err := w.s.Head(ctx, w.b, "k")
				if err != nil || h.ETag != info.ETag || !maps.Equal(h.Meta, meta) || h.ContentType != "text/x" {
					t.Errorf("put %+v, head %+v, %v", info, h, err)
				}
				clear(seg.Buf)
				if _, err := w.s.Read(ctx, ReadRequest{Bucket: w.b, Key: "k", ETag: info.ETag, Dst: seg, ObjectSize: int64(n)}); err != nil {
					t.Fatal(err)
				}
				wantSame(t, seg.Buf, data)
				written, read = written+int64(n), read+int64(n)
			}
			// An object of parts, read in chunks.
			data := noise(MinPartSize+3<<20+5, 1)
			seg := w.rdma.Segment(len(data), data)
			w.s.o.RDMAChunkSize = 8 << 20
			u, err := w.s.Begin(ctx, w.b, "parts", meta, "")
			if err != nil {
				t.Fatal(err)
			}
			for i, p := range []verbs.Segment{seg.Slice(0, MinPartSize), seg.Slice(MinPartSize, len(data)-MinPartSize)} {
				if err := u.Part(ctx, i+1, p); err != nil {
					t.Fatal(err)
				}
			}
			info, err := u.Complete(ctx, Cond{IfAbsent: true})
			if err != nil {
				t.Fatal(err)
			}
			clear(seg.Buf)
			w.s.o.RDMAChunkSize = 1 << 20
			if _, err := w.s.Read(ctx, ReadRequest{Bucket: w.b, Key: "parts", ETag: info.ETag, Dst: seg, ObjectSize: info.Size}); err != nil {
				t.Fatal(err)
			}
			wantSame(t, seg.Buf, data)
			written, read = written+int64(len(data)), read+int64(len(data))

			st := w.s.Stats()
			if st.Write.RDMA != (Traffic{5, written}) || st.Read.RDMA.Bytes != read || st.HTTPDataBytesEligible != 0 ||
				st.Read.HTTP.Bytes != 0 || st.Write.HTTP.Bytes != 0 || len(st.Fallbacks) != 0 {
				t.Errorf("stats %+v, want %d bytes written and %d read by RDMA alone", st, written, read)
			}
		})
	}
}

// Small, huge and unregistered transfers go by HTTP; only the last two are fallbacks.
func TestTransfersThatRDMAIsNotFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, true, ModeAuto, nil)
	mustPut(t, w.s, PutRequest{Bucket: w.b, Key: "small", Src: w.rdma.Segment(64<<10-1, nil)})
	mustPut(t, w.s, PutRequest{Bucket: w.b, Key: "empty"})
	st := w.s.Stats()
	if st.Write.HTTP.Transfers != 2 || st.HTTPDataBytesEligible != 0 || len(st.Fallbacks) != 0 {
		t.Errorf("after small ones: %+v", st)
	}
	mustPut(t, w.s, PutRequest{Bucket: w.b, Key: "unregistered", Src: plain(noise(100<<10, 1))})
	limit := w.s.RDMAPutLimit()
	mustPut(t, w.s, PutRequest{Bucket: w.b, Key: "huge", Src: w.rdma.Segment(int(limit)+1, nil)})
	st = w.s.Stats()
	if st.Write.RDMA.Transfers != 0 || st.HTTPDataBytesEligible != 100<<10+limit+1 ||
		st.Fallbacks["memory not registered"] != 1 || st.Fallbacks["larger than one transfer"] != 1 {
		t.Errorf("after others: %+v", st)
	}
	w.s.o.Mode = ModeRequire
	mustPut(t, w.s, PutRequest{Bucket: w.b, Key: "small", Src: w.rdma.Segment(100, nil)})
	_, err := w.s.Put(context.Background(), PutRequest{Bucket: w.b, Key: "unregistered", Src: plain(noise(100<<10, 1))})
	wantKind(t, err, ErrRDMA)
}

func TestRDMAReadSeesChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t, true, ModeRequire, func(o *Options) { o.RDMAChunkSize = 256 << 10; o.Parallel = 1 })
	ctx := context.Background()
	old := noise(1<<20, 1)
	w.env.Put(w.b, "k", old)
	h, err := w.s.Head(ctx, w.b, "k")
	if err != nil {
		t.Fatal(err)
	}
	seg := w.rdma.Segment(len(old), nil)
	r := ReadRequest{Bucket: w.b, Key: "k", ETag: h.ETag, Dst: seg, ObjectSize: h.Size}
	if _, err := w.s.Read(ctx, r); err != nil {
		t.Fatal(err)
	}
	// A peer that changes the object between two chunks.
	w.s.o.RDMA = &between{RDMA: w.s.o.RDMA, after: 2, do: func() { w.env.Put(w.b, "k", noise(1<<20, 2)) }}
	_, err = w.s.Read(ctx, r)
	wantKind(t, err, ErrChanged)
	w.env.Put(w.b, "k", noise(100<<10, 2))
	_, err = w.s.Read(ctx, r)
	wantKind(t, err, ErrChanged)
	if err := w.s.Delete(ctx, w.b, "k"); err != nil {
		t.Fatal(err)
	}
	_, err = w.s.Read(ctx, r)
	if !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrRDMA) {
		t.Errorf("read of a deleted object: %v", err)
	}
}

// between does something after a number of GETs.
type between struct {
	RDMA
	after int
	do    func()
}

func (b *between) Get(ctx context.Context, r rc.GetRequest) (rc.GetResult, error) {
	if b.after--; b.after == -1 {
		b.do()
	}
	return b.RDMA.Get(ctx, r)
}

// logged collects what is logged.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.FieldsFunc(l.b.String(), func(r rune) bool { return r == '\n' })
}

// Against a server that never heard of the protocol the same bytes go by HTTP, and
// the log says so once.
func TestAutoAgainstPlainServer(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t, testenv.Options{})
	dev := testenv.NewRDMA(t)
	b := env.NewBucket("")
	var log logged
	logger := slog.New(slog.NewTextHandler(&log, nil))
	client := dev.Client(env, env.AccessKey, env.SecretKey, func(o *rc.ClientOptions) { o.Logger = logger })
	s := open(t, env, env.Endpoint, func(o *Options) { o.RDMA, o.Logger, o.RDMAChunkSize = client, logger, 256<<10 })
	data := noise(1<<20, 1)
	seg := dev.Segment(len(data), data)
	for range 3 {
		i := mustPut(t, s, PutRequest{Bucket: b, Key: "k", Src: seg, Meta: map[string]string{"mode": "1"}})
		clear(seg.Buf)
		if _, err := s.Read(context.Background(), ReadRequest{Bucket: b, Key: "k", ETag: i.ETag, Dst: seg, ObjectSize: i.Size}); err != nil {
			t.Fatal(err)
		}
		wantSame(t, seg.Buf, data)
	}
	st := s.Stats()
	if st.Read.RDMA.Transfers+st.Write.RDMA.Transfers != 0 || st.Write.HTTP.Bytes != 3<<20 || st.Read.HTTP.Bytes != 3<<20 || len(st.Fallbacks) == 0 {
		t.Errorf("stats %+v", st)
	}
	if lines := log.lines(); len(lines) != 1 || !strings.Contains(lines[0], "level=WARN") {
		t.Errorf("logged %d lines:\n%s", len(lines), strings.Join(lines, "\n"))
	}
}

func TestRequireAgainstPlainServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, false, ModeRequire, nil)
	ctx := context.Background()
	seg := w.rdma.Segment(100<<10, nil)
	_, err := w.s.Put(ctx, PutRequest{Bucket: w.b, Key: "k", Src: seg})
	wantKind(t, err, ErrRDMA)
	if !strings.Contains(err.Error(), "RDMA") {
		t.Errorf("%v does not name RDMA", err)
	}
	_, err = w.s.Head(ctx, w.b, "k")
	wantKind(t, err, ErrNotFound)
	w.env.Put(w.b, "k", seg.Buf)
	h, err := w.s.Head(ctx, w.b, "k")
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.s.Read(ctx, ReadRequest{Bucket: w.b, Key: "k", ETag: h.ETag, Dst: seg, ObjectSize: h.Size})
	wantKind(t, err, ErrRDMA)
	if st := w.s.Stats(); st.Read.HTTP.Bytes+st.Write.HTTP.Bytes != 0 {
		t.Errorf("stats %+v", st)
	}
}

func TestModeOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t, true, ModeOff, nil)
	mustPut(t, w.s, PutRequest{Bucket: w.b, Key: "k", Src: w.rdma.Segment(1<<20, nil)})
	if st := w.s.Stats(); st.Write.RDMA.Transfers != 0 || len(st.Fallbacks) != 0 || st.HTTPDataBytesEligible != 1<<20 {
		t.Errorf("stats %+v", st)
	}
	if w.s.RDMAPutLimit() != 0 {
		t.Error("RDMAPutLimit without RDMA")
	}
}

// peer is an RDMA side whose transfers take place, by HTTP, and end as told.
type peer struct {
	s    *Store // over which the bytes go
	mu   sync.Mutex
	get  func(rc.GetRequest, rc.GetResult) (rc.GetResult, error)
	put  func(rc.PutRequest, func() rc.PutResult) (rc.PutResult, error)
	gets []rc.GetRequest
	puts int
	told []error
}

func (p *peer) Get(ctx context.Context, r rc.GetRequest) (rc.GetResult, error) {
	p.mu.Lock()
	p.gets = append(p.gets, r)
	p.mu.Unlock()
	i, err := p.s.Head(ctx, r.Bucket, r.Key)
	if err != nil {
		return rc.GetResult{}, err
	}
	n, err := p.s.Read(ctx, ReadRequest{Bucket: r.Bucket, Key: r.Key, ETag: i.ETag, Off: r.Offset, Dst: plain(r.Dst.Buf), ObjectSize: i.Size})
	if err != nil {
		return rc.GetResult{}, err
	}
	return p.get(r, rc.GetResult{N: int64(n), ETag: i.ETag})
}

func (p *peer) Put(ctx context.Context, r rc.PutRequest) (rc.PutResult, error) {
	p.puts++
	return p.put(r, func() rc.PutResult {
		i, err := p.s.Put(ctx, PutRequest{Bucket: r.Bucket, Key: r.Key, Src: plain(r.Src.Buf), Meta: r.Meta})
		if err != nil {
			panic(err)
		}
		return rc.PutResult{ETag: i.ETag}
	})
}

func (p *peer) EligibleGet(_, _ int64) (bool, string)    { return true, "" }
func (p *peer) EligiblePut(rc.PutRequest) (bool, string) { return true, "" }
func (p *peer) MaxTransfer(rc.Op) int64                  { return 1 << 20 }
func (p *peer) HTTPSucceeded(err error)                  { p.told = append(p.told, err) }

// region is memory that counts as registered.
type region struct{ verbs.MR }

func registered(b []byte) verbs.Segment { return verbs.Segment{Buf: b, MR: region{}} }

// told is a world in which RDMA transfers end as told.
func told(t *testing.T, mode Mode) (*Store, *peer, *faultproxy.Proxy, string) {
	t.Helper()
	env := testenv.Start(t, testenv.Options{})
	proxy := faultproxy.Start(t, env.Endpoint)
	p := &peer{s: open(t, env, env.Endpoint, nil)}
	s := open(t, env, proxy.URL, func(o *Options) { o.RDMA, o.Mode = p, mode })
	return s, p, proxy, env.NewBucket("")
}

func TestRDMAReadOutcomes(t *testing.T) {
	t.Parallel()
	data := noise(100<<10, 1)
	failed := func(e rc.Error) func(rc.GetRequest, rc.GetResult) (rc.GetResult, error) {
		e.Op = rc.OpGet
		return func(rc.GetRequest, rc.GetResult) (rc.GetResult, error) { return rc.GetResult{}, &e }
	}
	for name, c := range map[string]struct {
		get  func(rc.GetRequest, rc.GetResult) (rc.GetResult, error)
		auto error // nil: the bytes come by HTTP
		must error // in mode require
	}{
		"completion error": {failed(rc.Error{Phase: rc.PhaseData, Action: rc.ActionHTTP, Err: rc.ErrCompletion}), nil, ErrRDMA},
		"refused":          {failed(rc.Error{Phase: rc.PhasePrepare, Status: 403, Code: "AccessDenied", Action: rc.ActionHTTP}), nil, ErrRDMA},
		"version gone":     {failed(rc.Error{Phase: rc.PhasePrepare, Status: 412, Code: "PreconditionFailed", Action: rc.ActionFail}), ErrChanged, ErrChanged},
		"object gone":      {failed(rc.Error{Phase: rc.PhasePrepare, Status: 404, Code: "NoSuchKey", Action: rc.ActionFail}), ErrNotFound, ErrNotFound},
		"unsafe":           {failed(rc.Error{Phase: rc.PhaseData, Action: rc.ActionHTTP, Err: verbs.ErrUnsafe}), verbs.ErrUnsafe, verbs.ErrUnsafe},
		"other version": {func(_ rc.GetRequest, r rc.GetResult) (rc.GetResult, error) {
			r.ETag = "0123456789abcdef0123456789abcdef"
			return r, nil
		}, ErrChanged, ErrChanged},
		"short": {func(_ rc.GetRequest, r rc.GetResult) (rc.GetResult, error) {
			r.N--
			return r, nil
		}, nil, ErrRDMA},
	} {
		for _, mode := range []Mode{ModeAuto, ModeRequire} {
			want := c.auto
			if mode == ModeRequire {
				want = c.must
			}
			t.Run(name+", "+mode.String(), func(t *testing.T) {
				t.Parallel()
				s, p, _, b := told(t, mode)
				p.get = c.get
				i := mustPut(t, p.s, PutRequest{Bucket: b, Key: "k", Src: plain(data)})
				buf := make([]byte, len(data))
				_, err := s.Read(context.Background(), ReadRequest{Bucket: b, Key: "k", ETag: i.ETag, Dst: registered(buf), ObjectSize: i.Size})
				st := s.Stats()
				if st.Read.RDMA.Transfers != 0 || len(p.gets) != 1 {
					t.Errorf("%d GETs, stats %+v", len(p.gets), st)
				}
				if want != nil {
					wantKind(t, err, want)
					if st.Read.HTTP.Transfers != 0 || len(p.told) != 0 {
						t.Errorf("stats %+v", st)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				wantSame(t, buf, data)
				if st.HTTPDataBytesEligible != int64(len(data)) || len(st.Fallbacks) != 1 || len(p.told) != 1 {
					t.Errorf("stats %+v, told %v", st, p.told)
				}
			})
		}
	}
}

// A peer that does not tell versions is not believed, unless it compares them itself.
func TestRDMAReadWithoutETag(t *testing.T) {
	t.Parallel()
	for name, cond := range map[string]bool{"peer cannot compare": false, "peer compares": true} {
		t.Run(name, func(t *testing.T) {
			s, p, _, b := told(t, ModeAuto)
			p.get = func(q rc.GetRequest, r rc.GetResult) (rc.GetResult, error) {
				if q.IfMatch != "" && !cond {
					return r, &rc.Error{Op: rc.OpGet, Action: rc.ActionHTTP, Err: rc.ErrNotEligible}
				}
				r.ETag = ""
				return r, nil
			}
			data := noise(100<<10, 1)
			i := mustPut(t, p.s, PutRequest{Bucket: b, Key: "k", Src: plain(data)})
			for range 3 {
				buf := make([]byte, len(data))
				if _, err := s.Read(context.Background(), ReadRequest{Bucket: b, Key: "k", ETag: i.ETag, Dst: registered(buf), ObjectSize: i.Size}); err != nil {
					t.Fatal(err)
				}
				wantSame(t, buf, data)
			}
			st, want := s.Stats(), int64(0)
			if cond {
				want = 2
			}
			if st.Read.RDMA.Transfers != want || st.Read.HTTP.Transfers != 3-want {
				t.Errorf("stats %+v, want %d by RDMA", st, want)
			}
			if last := p.gets[len(p.gets)-1]; last.IfMatch != i.ETag {
				t.Errorf("asked with If-Match %q", last.IfMatch)
			}
		})
	}
}

// One chunk whose memory may still be written to decides for all.
func TestUnsafeChunkIsNotLost(t *testing.T) {
	t.Parallel()
	s, p, _, b := told(t, ModeRequire)
	s.o.RDMAChunkSize, s.o.Parallel = 64<<10, 2
	entered := make(chan struct{})
	p.get = func(q rc.GetRequest, r rc.GetResult) (rc.GetResult, error) {
		if q.Offset == 0 {
			<-entered
			return r, &rc.Error{Op: rc.OpGet, Action: rc.ActionHTTP, Err: rc.ErrDeadline}
		}
		close(entered)
		return r, &rc.Error{Op: rc.OpGet, Action: rc.ActionFail, Err: verbs.ErrUnsafe}
	}
	i := mustPut(t, p.s, PutRequest{Bucket: b, Key: "k", Src: plain(noise(128<<10, 1))})
	_, err := s.Read(context.Background(), ReadRequest{Bucket: b, Key: "k", ETag: i.ETag, Dst: registered(make([]byte, 128<<10)), ObjectSize: i.Size})
	wantKind(t, err, verbs.ErrUnsafe)
}

func TestRDMAPutOutcomes(t *testing.T) {
	t.Parallel()
	type result = func(rc.PutRequest, func() rc.PutResult) (rc.PutResult, error)
	ends := func(store bool, e rc.Error) result {
		e.Op = rc.OpPut
		return func(_ rc.PutRequest, do func() rc.PutResult) (rc.PutResult, error) {
			if store {
				do()
			}
			return rc.PutResult{}, &e
		}
	}
	unknown := rc.Error{Phase: rc.PhaseFinal, Action: rc.ActionUnknown, Err: rc.ErrDeadline}
	data := noise(100<<10, 1)
	meta := map[string]string{"mtime": "1"}
	for name, c := range map[string]struct {
		put  result
		cond Cond
		http int // HTTP PUTs in mode auto
		auto error
	}{
		"no ETag": {func(_ rc.PutRequest, do func() rc.PutResult) (rc.PutResult, error) {
			do()
			return rc.PutResult{}, nil
		}, Cond{}, 0, nil},
		"failed":                     {ends(false, rc.Error{Phase: rc.PhaseData, Action: rc.ActionHTTP, Err: rc.ErrCompletion}), Cond{}, 1, nil},
		"unknown, stored":            {ends(true, unknown), Cond{}, 0, nil},
		"unknown, stored, if absent": {ends(true, unknown), Cond{IfAbsent: true}, 0, nil},
		"unknown, not stored":        {ends(false, unknown), Cond{IfAbsent: true}, 1, nil},
		"condition does not hold":    {ends(false, rc.Error{Phase: rc.PhaseFinal, Status: 412, Code: "PreconditionFailed", Action: rc.ActionFail, Err: rc.ErrPrecondition}), Cond{IfAbsent: true}, 0, ErrExists},
		"no bucket":                  {ends(false, rc.Error{Phase: rc.PhasePrepare, Status: 404, Code: "NoSuchBucket", Action: rc.ActionFail}), Cond{}, 0, ErrNoBucket},
		"unsafe":                     {ends(false, rc.Error{Phase: rc.PhaseData, Action: rc.ActionUnknown, Err: verbs.ErrUnsafe}), Cond{}, 0, verbs.ErrUnsafe},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, p, proxy, b := told(t, ModeAuto)
			p.put = c.put
			i, err := s.Put(context.Background(), PutRequest{Bucket: b, Key: "k", Src: registered(data), Meta: meta, Cond: c.cond})
			if n := len(proxy.Requests("PUT")); n != c.http || p.puts != 1 {
				t.Errorf("%d PUTs by RDMA and %d by HTTP, want 1 and %d", p.puts, n, c.http)
			}
			if c.auto != nil {
				wantKind(t, err, c.auto)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			h, err := p.s.Head(context.Background(), b, "k")
			if err != nil || h.ETag != i.ETag || !maps.Equal(h.Meta, meta) {
				t.Errorf("put %+v, head %+v, %v", i, h, err)
			}
		})
	}
}

// In mode require a busy server is waited for.
func TestRequireWaitsForBusyServer(t *testing.T) {
	t.Parallel()
	s, p, proxy, b := told(t, ModeRequire)
	busy := 2
	p.put = func(_ rc.PutRequest, do func() rc.PutResult) (rc.PutResult, error) {
		if busy--; busy >= 0 {
			return rc.PutResult{}, &rc.Error{Op: rc.OpPut, Phase: rc.PhasePrepare, Status: 503, Code: "SlowDown", Action: rc.ActionHTTP}
		}
		return do(), nil
	}
	mustPut(t, s, PutRequest{Bucket: b, Key: "k", Src: registered(noise(100<<10, 1))})
	if len(proxy.Requests("PUT")) != 0 || p.puts != 3 || s.Stats().Write.RDMA.Transfers != 1 {
		t.Errorf("%d PUTs by HTTP, %d by RDMA", len(proxy.Requests("PUT")), p.puts)
	}
}

// Who lent the memory hears of a failure whose peer may know the rkey, whatever comes
// after it.
func TestRDMAFailuresAreTold(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		told bool
	}{
		"good":             {nil, false},
		"not prepared":     {&rc.Error{Phase: rc.PhasePrepare, Action: rc.ActionHTTP, Err: rc.ErrDeadline}, false},
		"refused":          {&rc.Error{Phase: rc.PhaseReady, Status: 404, Code: "NoSuchRdmaSession", Action: rc.ActionHTTP}, false},
		"a proxy's answer": {&rc.Error{Phase: rc.PhaseReady, Status: 404, Action: rc.ActionHTTP}, true},
		"no answer":        {&rc.Error{Phase: rc.PhaseReady, Action: rc.ActionHTTP, Err: rc.ErrDeadline}, true},
		"timed out":        {&rc.Error{Phase: rc.PhaseReady, Status: 408, Code: "RequestTimeout", Action: rc.ActionHTTP}, true},
		"transfer failed":  {&rc.Error{Phase: rc.PhaseReady, Status: 502, Code: "RdmaTransferFailed", Action: rc.ActionHTTP}, true},
		"bad completion":   {&rc.Error{Phase: rc.PhaseData, Action: rc.ActionHTTP, Err: rc.ErrCompletion}, true},
		"bad bytes":        {&rc.Error{Phase: rc.PhaseFinal, Action: rc.ActionHTTP, Err: rc.ErrChecksum}, true},
		"something else":   {errors.New("no idea"), true},
	} {
		for _, mode := range []Mode{ModeAuto, ModeRequire} {
			t.Run(name+", "+mode.String(), func(t *testing.T) {
				t.Parallel()
				s, p, _, b := told(t, mode)
				p.get = func(_ rc.GetRequest, r rc.GetResult) (rc.GetResult, error) { return r, c.err }
				data := noise(100<<10, 1)
				i := mustPut(t, p.s, PutRequest{Bucket: b, Key: "k", Src: plain(data)})
				var heard []error
				_, err := s.Read(context.Background(), ReadRequest{
					Bucket: b, Key: "k", ETag: i.ETag, Dst: registered(make([]byte, len(data))), ObjectSize: i.Size,
					RDMAFailed: func(err error) { heard = append(heard, err) },
				})
				if (err != nil) != (c.err != nil && mode == ModeRequire) {
					t.Error(err)
				}
				if (len(heard) == 1 && heard[0] == c.err) != c.told || len(heard) > 1 {
					t.Errorf("told of %v", heard)
				}
			})
		}
	}
}
