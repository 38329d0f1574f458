package rc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
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

// duo is our client against our server.
type duo struct {
	t       testing.TB
	objects *memObjects
	server  *rc.Server
	theirs  *fabricEnd
	own     *fabricEnd
	seg     verbs.Segment
	url     string

	mu       sync.Mutex
	handler  http.Handler
	requests []http.Header // of NEXT
	routes   map[string]int
	// intercept may answer a request instead of the server; set before any is sent.
	intercept func(w http.ResponseWriter, r *http.Request, next http.Handler) bool
}

type duoOptions struct {
	server      func(*rc.ServerOptions)
	own, theirs *shm.Faults
	bare        bool // no recording, no intercept
}

func authByAccessKey(r *http.Request) (rc.Principal, error) {
	_, c, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
	c, _, _ = strings.Cut(c, "/")
	return rc.Principal{ID: c}, nil
}

func newDuo(t testing.TB, o duoOptions) *duo {
	t.Helper()
	d := &duo{t: t, objects: newMemObjects(), routes: make(map[string]int)}
	d.own, d.theirs = newEnd(t, o.own), newEnd(t, o.theirs)
	d.seg = d.own.region(t, 16<<20)
	d.startServer(o.server)
	var h http.Handler = http.HandlerFunc(d.serve)
	if o.bare {
		h = d.handler
	}
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	d.url = srv.URL
	return d
}

// startServer puts a new server, which knows nothing of earlier sessions, behind
// the endpoint.
func (d *duo) startServer(edit func(*rc.ServerOptions)) {
	d.t.Helper()
	o := rc.ServerOptions{
		Pool: d.theirs.pool, PD: d.theirs.pd, GIDIndex: d.theirs.gid.Index, GID: d.theirs.gid.GID,
		Objects: d.objects, MaxTransfer: 16 << 20,
	}
	if edit != nil {
		edit(&o)
	}
	s, err := rc.NewServer(o)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), clientPatience)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			d.t.Errorf("close server: %v", err)
		}
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.server, d.handler = s, s.Handler(authByAccessKey)
}

func (d *duo) serve(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	h := d.handler
	d.routes[r.URL.Path]++
	if r.URL.Path == token.PathNext {
		d.requests = append(d.requests, r.Header.Clone())
	}
	d.mu.Unlock()
	if d.intercept == nil || !d.intercept(w, r, h) {
		h.ServeHTTP(w, r)
	}
}

func (d *duo) count(path string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.routes[path]
}

func (d *duo) client(tune func(*rc.ClientOptions)) *rc.Client {
	return newClient(d.t, d.own, d.url, tune)
}

func noKeep(o *rc.ClientOptions) { o.NoKeep = true }

// warm runs a first transfer, after which the client knows the extensions.
func (d *duo) warm(c *rc.Client) {
	d.t.Helper()
	if err := c.Probe(d.t.Context()); err != nil {
		d.t.Fatal(err)
	}
}

func (d *duo) get(c *rc.Client, key string, n int) error {
	_, err := c.Get(d.t.Context(), rc.GetRequest{Bucket: "b", Key: key, Dst: d.seg.Slice(0, n)})
	return err
}

func (d *duo) put(c *rc.Client, key string, n int) error {
	_, err := c.Put(d.t.Context(), rc.PutRequest{Bucket: "b", Key: key, Src: d.seg.Slice(0, n)})
	return err
}

func TestClientAndServer(t *testing.T) {
	for name, tune := range map[string]func(*rc.ClientOptions){
		"keep":          nil,
		"per transfer":  noKeep,
		"with checksum": func(o *rc.ClientOptions) { o.Checksum = true },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDuo(t, duoOptions{})
			c := d.client(tune)
			for i, n := range append(sizes(), 5<<20) {
				key := fmt.Sprintf("dir with blank/ü%d", i)
				data := random(n)
				copy(d.seg.Buf, data)
				put, err := c.Put(t.Context(), rc.PutRequest{Bucket: "b", Key: key, Src: d.seg.Slice(0, n)})
				if err != nil {
					t.Fatal(err)
				}
				o, _ := d.objects.get(token.Target{Bucket: "b", Key: key}.Encode())
				wantBytes(t, "stored", o.data, data)
				plant(d.seg.Buf[:n+1])
				got, err := c.Get(t.Context(), rc.GetRequest{Bucket: "b", Key: key, Dst: d.seg.Slice(0, n)})
				if err != nil {
					t.Fatal(err)
				}
				wantBytes(t, "fetched", d.seg.Buf[:n], data)
				checkCanary(t, d.seg.Buf[n:n+1])
				if got.N != int64(n) || got.ETag != o.etag || put.ETag != o.etag {
					t.Errorf("%d bytes, ETags %q %q, want %d %q", got.N, put.ETag, got.ETag, n, o.etag)
				}
				if n > 100 {
					got, err = c.Get(t.Context(), rc.GetRequest{Bucket: "b", Key: key, Offset: 7, Dst: d.seg.Slice(0, n)})
					if err != nil || got.N != int64(n-7) {
						t.Errorf("shortened GET: %d bytes, %v", got.N, err)
					}
					wantBytes(t, "range", d.seg.Buf[:n-7], data[7:])
				}
			}
			s := c.Stats()
			if s.GetErrors+s.PutErrors+s.CookieMismatches+s.Retries != 0 {
				t.Errorf("stats %+v", s)
			}
		})
	}
}

func TestExtensionsAreProbedWhenNeeded(t *testing.T) {
	d := newDuo(t, duoOptions{})
	c := d.client(noKeep)
	r := rc.PutRequest{Bucket: "b", Key: "k", Src: d.seg.Slice(0, 1000), UploadID: "u/1=", PartNumber: 7}
	if ok, reason := c.EligiblePut(r); !ok {
		t.Fatalf("not eligible before anything is known: %s", reason)
	}
	copy(d.seg.Buf, random(1000))
	if _, err := c.Put(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	o, ok := d.objects.get("/b/k?partNumber=7&uploadId=u%2F1%3D")
	if !ok {
		t.Fatal("part not stored")
	}
	wantBytes(t, "part", o.data, random(1000))
	if ok, reason := c.EligibleGet(1<<31, 1000); !ok {
		t.Errorf("range beyond 2 GiB: %s", reason)
	}
}

// TestExtensionsNotThere: a peer without them never gets such a request.
func TestExtensionsNotThere(t *testing.T) {
	for _, p := range []rctest.Profile{rctest.VGW, rctest.ELB, rctest.HIPRef, rctest.RGW} {
		t.Run(p.Name, func(t *testing.T) {
			r := newRig(t, rigOptions{profile: p})
			src := r.seg.Slice(0, 1000)
			for what, put := range map[string]rc.PutRequest{
				"part":      {Bucket: "b", Key: "k", Src: src, UploadID: "u", PartNumber: 1},
				"condition": {Bucket: "b", Key: "k", Src: src, IfNoneMatch: "*"},
				"metadata":  {Bucket: "b", Key: "k", Src: src, Meta: map[string]string{"a": "b"}},
				"type":      {Bucket: "b", Key: "k", Src: src, ContentType: "text/plain"},
			} {
				_, err := r.client.Put(t.Context(), put)
				wantError(t, err, rc.ActionHTTP, rc.PhasePrepare)
				if !errors.Is(err, rc.ErrNotEligible) {
					t.Errorf("%s: %v", what, err)
				}
				if ok, _ := r.client.EligiblePut(put); ok {
					t.Errorf("%s is still eligible", what)
				}
			}
			if ok, _ := r.client.EligibleGet(1<<31-1000, 1000); ok {
				t.Error("a range that ends beyond 2^31-1 is eligible")
			}
			if ok, reason := r.client.EligibleGet(1<<31-1001, 1000); !ok {
				t.Errorf("a range that ends at 2^31-1 is not: %s", reason)
			}
			if n := r.peer.Seen("prepare"); n != 1 {
				t.Errorf("%d PREPAREs, want one probe", n)
			}
			if r.peer.Stored() != 0 {
				t.Error("stored something")
			}
			must[rc.PutResult](t)(r.put(t.Context(), "k", 1000))
		})
	}
}

func TestEligibility(t *testing.T) {
	d := newDuo(t, duoOptions{})
	c := d.client(func(o *rc.ClientOptions) { o.MinSize, o.ChunkSize = 1000, 10_000 })
	d.warm(c)
	for n, want := range map[int64]bool{0: false, 999: false, 1000: true, 10_000: true, 10_001: false} {
		if ok, reason := c.EligibleGet(0, n); ok != want {
			t.Errorf("GET of %d bytes: %v (%s)", n, ok, reason)
		}
	}
	src := d.seg.Slice(0, 5000)
	for _, bad := range []rc.PutRequest{
		{UploadID: "u"},
		{PartNumber: 3},
		{UploadID: "u", PartNumber: 10_001},
		{UploadID: "u", PartNumber: 1, IfNoneMatch: "*"},
		{IfMatch: "a", IfNoneMatch: "*"},
		{IfNoneMatch: "etag"},
		{ContentType: "text/\x01"},
		{ContentType: strings.Repeat("x", 256)},
		{Meta: map[string]string{"Upper": "x"}},
		{Meta: map[string]string{"a": strings.Repeat("x", 2048)}},
		{Meta: map[string]string{"a": "line\nbreak"}},
	} {
		bad.Bucket, bad.Key, bad.Src = "b", "k", src
		if ok, _ := c.EligiblePut(bad); ok {
			t.Errorf("eligible: %+v", bad)
		}
		if _, err := c.Put(t.Context(), bad); !errors.Is(err, rc.ErrNotEligible) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	for what, r := range map[string]rc.GetRequest{
		"unregistered": {Bucket: "b", Key: "k", Dst: verbs.Segment{Buf: make([]byte, 5000)}},
		"empty":        {Bucket: "b", Key: "k", Dst: d.seg.Slice(0, 0)},
		"negative":     {Bucket: "b", Key: "k", Offset: -1, Dst: src},
		"long name":    {Bucket: "b", Key: strings.Repeat("k", 2048), Dst: src},
	} {
		if _, err := c.Get(t.Context(), r); !errors.Is(err, rc.ErrNotEligible) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if d.count(token.PathPrepare) != 1 || d.count(token.PathNext) != 0 {
		t.Error("requests that are not eligible reached the server")
	}
	c.Close()
	if ok, _ := c.EligibleGet(0, 5000); ok {
		t.Error("eligible after Close")
	}
	if err := d.get(c, "k", 5000); !errors.Is(err, rc.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestConditionsAndMetadata(t *testing.T) {
	for name, tune := range map[string]func(*rc.ClientOptions){"keep": nil, "per transfer": noKeep} {
		t.Run(name, func(t *testing.T) {
			d := newDuo(t, duoOptions{})
			c := d.client(tune)
			put := func(r rc.PutRequest) (rc.PutResult, error) {
				r.Bucket, r.Key, r.Src = "b", "k", d.seg.Slice(0, 2000)
				return c.Put(t.Context(), r)
			}
			refused := func(what string, err error) {
				t.Helper()
				e, ok := err.(*rc.Error)
				if !ok || e.Action != rc.ActionFail || e.Status != http.StatusPreconditionFailed || !errors.Is(err, rc.ErrPrecondition) {
					t.Errorf("%s: %v", what, err)
				}
			}
			meta := map[string]string{"mode": "0644", "owner": "ünï cödé  x", "empty": ""}
			copy(d.seg.Buf, random(2000))
			first, err := put(rc.PutRequest{IfNoneMatch: "*", Meta: meta, ContentType: "text/plain; charset=utf-8"})
			if err != nil {
				t.Fatal(err)
			}
			o, _ := d.objects.get("/b/k")
			if o.contentType != "text/plain; charset=utf-8" || len(o.meta) != len(meta) {
				t.Errorf("stored %q %v", o.contentType, o.meta)
			}
			for k, v := range meta {
				if o.meta[k] != v {
					t.Errorf("metadata %s is %q", k, o.meta[k])
				}
			}
			d.seg.Buf[0] ^= 1
			_, err = put(rc.PutRequest{IfNoneMatch: "*"})
			refused("exists", err)
			_, err = put(rc.PutRequest{IfMatch: "0123"})
			refused("other version", err)
			if now, _ := d.objects.get("/b/k"); now.etag != o.etag {
				t.Error("a refused PUT was stored")
			}
			if _, err = put(rc.PutRequest{IfMatch: first.ETag}); err != nil {
				t.Fatal(err)
			}
			_, err = c.Get(t.Context(), rc.GetRequest{Bucket: "b", Key: "k", Dst: d.seg.Slice(0, 2000), IfMatch: first.ETag})
			refused("GET of an old version", err)
			now, _ := d.objects.get("/b/k")
			if _, err = c.Get(t.Context(), rc.GetRequest{Bucket: "b", Key: "k", Dst: d.seg.Slice(0, 2000), IfMatch: now.etag}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestChecksumMismatch(t *testing.T) {
	for name, tune := range map[string]func(*rc.ClientOptions){"keep": nil, "per transfer": noKeep} {
		t.Run(name, func(t *testing.T) {
			d := newDuo(t, duoOptions{})
			sum := token.FormatChecksum(1)
			var asked atomic.Int32
			d.intercept = func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
				rec := httptest.NewRecorder()
				next.ServeHTTP(rec, r)
				for k, v := range rec.Header() {
					w.Header()[k] = v
				}
				if rec.Header().Get(token.HeaderChecksum) != "" {
					asked.Add(1)
					w.Header().Set(token.HeaderChecksum, sum)
				}
				w.WriteHeader(rec.Code)
				w.Write(rec.Body.Bytes())
				return true
			}
			c := d.client(func(o *rc.ClientOptions) {
				o.Checksum = true
				if tune != nil {
					tune(o)
				}
			})
			d.warm(c)
			d.objects.put("/b/k", random(3000))
			err := d.get(c, "k", 3000)
			if e, ok := err.(*rc.Error); !ok || e.Action != rc.ActionHTTP || !errors.Is(err, rc.ErrChecksum) {
				t.Errorf("GET: %v", err)
			}
			err = d.put(c, "p", 3000)
			if e, ok := err.(*rc.Error); !ok || e.Action != rc.ActionUnknown || !errors.Is(err, rc.ErrChecksum) {
				t.Errorf("PUT: %v", err)
			}
			if asked.Load() == 0 {
				t.Error("no checksum was asked for")
			}
		})
	}
}

// TestCredentialsOfASession: they rotate with every call, and a session keeps those
// it began with; the peer notes it otherwise.
func TestCredentialsOfASession(t *testing.T) {
	var n atomic.Int32
	rotate := func(o *rc.ClientOptions) {
		o.Credentials = func(context.Context) (token.Credentials, error) {
			return token.Credentials{AccessKey: fmt.Sprintf("KEY%d", n.Add(1)), SecretKey: rctest.Secret, SessionToken: "t"}, nil
		}
	}
	r := newRig(t, rigOptions{client: rotate})
	for range 3 {
		must[rc.PutResult](t)(r.put(t.Context(), "k", 1000))
	}
	d := newDuo(t, duoOptions{})
	c := d.client(rotate)
	d.warm(c)
	for range 3 {
		if err := d.put(c, "k", 1000); err != nil {
			t.Fatal(err)
		}
	}
	if s := c.Stats(); s.KeptOpened != 3 || s.Retries != 0 {
		t.Errorf("kept sessions of other credentials were used: %+v", s)
	}
}

func TestRequestOfCanceledCaller(t *testing.T) {
	d := newDuo(t, duoOptions{})
	c := d.client(nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := c.Get(ctx, rc.GetRequest{Bucket: "b", Key: "k", Dst: d.seg.Slice(0, 100)})
	if e, ok := err.(*rc.Error); !ok || e.Action != rc.ActionFail || !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if ok, reason := c.EligibleGet(0, 100); !ok {
		t.Errorf("the endpoint was blamed: %s", reason)
	}
}

// TestPlainS3Server: one that never heard of the protocol is left alone after
// HTTP did the request.
func TestPlainS3Server(t *testing.T) {
	var asked atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusNotFound)
		w.Write([]byte("<Error><Code>NoSuchBucket</Code></Error>"))
	}))
	defer srv.Close()
	var log bytes.Buffer
	own := newEnd(t, nil)
	seg := own.region(t, 1000)
	c := newClient(t, own, srv.URL, func(o *rc.ClientOptions) { o.Logger = textLogger(&log) })
	get := func() error {
		_, err := c.Get(t.Context(), rc.GetRequest{Bucket: "b", Key: "k", Dst: seg})
		return err
	}
	err := get()
	wantError(t, err, rc.ActionHTTP, rc.PhasePrepare)
	if ok, _ := c.EligibleGet(0, 1000); !ok {
		t.Fatal("condemned although the object may just not exist")
	}
	c.HTTPSucceeded(err)
	if ok, _ := c.EligibleGet(0, 1000); ok {
		t.Fatal("not condemned")
	}
	wantError(t, get(), rc.ActionHTTP, rc.PhasePrepare)
	if n := asked.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "RDMA not used") {
		t.Errorf("log: %s", log.String())
	}
}

// TestMarker: not for this request, or not for this endpoint.
func TestMarker(t *testing.T) {
	marker := false
	r := newRig(t, rigOptions{hooks: rctest.Hooks{Answer: func(w http.ResponseWriter, req *http.Request) bool {
		if marker {
			w.Header().Set(token.HeaderProtocolStatus, token.StatusUnsupported)
			w.WriteHeader(http.StatusNotImplemented)
		}
		return marker
	}}})
	must[rc.PutResult](t)(r.put(t.Context(), "k", 1000))
	marker = true
	_, err := r.put(t.Context(), "k", 1000)
	wantError(t, err, rc.ActionHTTP, rc.PhasePrepare)
	if ok, reason := r.client.EligibleGet(0, 1000); !ok {
		t.Errorf("one object's marker condemned the endpoint: %s", reason)
	}
	fresh := newClient(t, r.own, r.url, nil)
	_, err = fresh.Get(t.Context(), rc.GetRequest{Bucket: "b", Key: "k", Dst: r.seg.Slice(0, 1000)})
	wantError(t, err, rc.ActionHTTP, rc.PhasePrepare)
	if ok, _ := fresh.EligibleGet(0, 1000); ok {
		t.Error("not in the negative cache")
	}
}

func TestLimitsOfThePeerThrottle(t *testing.T) {
	p := rctest.VGW
	p.Sessions = 1
	g := newGate()
	defer g.release()
	var first atomic.Bool
	r := newRig(t, rigOptions{profile: p, hooks: rctest.Hooks{Answer: func(w http.ResponseWriter, req *http.Request) bool {
		// The first READY waits before it is looked at, so that its session exists meanwhile.
		if req.URL.Path == token.PathReady && first.CompareAndSwap(false, true) {
			g.hold()
		}
		return false
	}}})
	r.peer.Set("b/k", random(1000))
	done := make(chan error, 1)
	go func() {
		_, err := r.client.Get(context.Background(), rc.GetRequest{Bucket: "b", Key: "k", Dst: r.seg.Slice(0, 1000)})
		done <- err
	}()
	g.await(t)
	_, err := r.client.Get(t.Context(), rc.GetRequest{Bucket: "b", Key: "k", Dst: r.seg.Slice(1000, 1000)})
	e := wantError(t, err, rc.ActionHTTP, rc.PhasePrepare)
	if e.Status != http.StatusTooManyRequests {
		t.Errorf("status %d", e.Status)
	}
	if s := r.client.Stats(); s.Bound != 4 {
		t.Errorf("bound %d", s.Bound)
	}
	g.release()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(clientPatience):
		t.Error("the first transfer hangs")
	}
}

// TestStaleConnection: the server closes an idle connection at the moment it is
// used again; PREPARE may be sent a second time.
func TestStaleConnection(t *testing.T) {
	d := newDuo(t, duoOptions{})
	var prepares atomic.Int32
	d.intercept = func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		if r.URL.Path == token.PathPrepare && prepares.Add(1) == 2 {
			panic(http.ErrAbortHandler)
		}
		return false
	}
	c := d.client(noKeep)
	for range 2 {
		if err := d.put(c, "k", 1000); err != nil {
			t.Fatal(err)
		}
	}
	if n := prepares.Load(); n != 3 {
		t.Errorf("%d PREPAREs", n)
	}
	if s := c.Stats(); s.Retries != 0 || s.PutErrors != 0 || !s.Usable {
		t.Errorf("stats %+v", s)
	}
}
