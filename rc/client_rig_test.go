package rc_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"

	"s3rdmafs/internal/testdevice"
	"s3rdmafs/rc"
	"s3rdmafs/rc/rctest"
	"s3rdmafs/token"
	"s3rdmafs/verbs"
	"s3rdmafs/verbs/shm"
)

// clientPatience bounds what a test waits for; nothing asserts how long it took.
const clientPatience = 20 * time.Second

const regionSize = 4 << 20

// end is one end of the fabric: a device with pool and PD.
type fabricEnd struct {
	dev  verbs.Device
	pd   verbs.PD
	pool *verbs.Pool
	gid  verbs.GIDEntry
}

func newEnd(t testing.TB, f *shm.Faults) *fabricEnd {
	t.Helper()
	d := testdevice.Open(t, f)
	pd, err := d.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pd.Close(); err != nil {
			t.Errorf("close PD: %v", err)
		}
	})
	pool, err := verbs.NewPool(d, verbs.PoolOptions{
		PD: pd, Port: 1, MaxQPs: 64, IdleQPs: 16, Access: verbs.AccessRemoteWrite,
		Cap: verbs.QPCap{MaxSendWR: 2, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if n := pool.Stats().InUse; n != 0 {
			t.Errorf("%d queue pairs were not given back", n)
		}
		if err := pool.Close(); err != nil {
			t.Errorf("close pool: %v", err)
		}
	})
	return &fabricEnd{dev: d, pd: pd, pool: pool, gid: testdevice.GID(t, d)}
}

// region registers memory that outlives the client of a test.
func (e *fabricEnd) region(t testing.TB, size int) verbs.Segment {
	t.Helper()
	mem, err := verbs.NewMemory("test", size)
	if err != nil {
		t.Fatal(err)
	}
	mr, err := e.pd.RegMR(mem, 0, size, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mr.Close(); err != nil {
			t.Errorf("close MR: %v", err)
		}
		if err := mem.Close(); err != nil {
			t.Errorf("close memory: %v", err)
		}
	})
	return verbs.Segment{Buf: mr.Bytes(), MR: mr}
}

func newClient(t testing.TB, e *fabricEnd, endpoint string, tune func(*rc.ClientOptions)) *rc.Client {
	t.Helper()
	u, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	o := rc.ClientOptions{
		Endpoint: u,
		Credentials: func(context.Context) (token.Credentials, error) {
			return token.Credentials{AccessKey: "ACCESS", SecretKey: rctest.Secret}, nil
		},
		Pool:     e.pool,
		GIDIndex: e.gid.Index,
		GID:      e.gid.GID,
		GIDs:     []verbs.GIDEntry{e.gid},
		MinSize:  1,
		Timeouts: rc.ClientTimeouts{Transfer: clientPatience, Final: clientPatience},
	}
	if tune != nil {
		tune(&o)
	}
	c, err := rc.NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// rig is a client against a test peer, each on a device of its own.
type rig struct {
	t      *testing.T
	client *rc.Client
	peer   *rctest.Peer
	own    *fabricEnd
	seg    verbs.Segment // of the client
	url    string
	done   chan struct{} // a request of the peer has ended
}

type rigOptions struct {
	profile rctest.Profile
	hooks   rctest.Hooks
	exec    time.Duration
	own     *shm.Faults // of the client's device
	theirs  *shm.Faults
	client  func(*rc.ClientOptions)
	peer    func(*rctest.Options)
	// malformed is set where the test makes the peer see what it calls a violation.
	violations bool
}

func newRig(t *testing.T, o rigOptions) *rig {
	t.Helper()
	if o.profile.Name == "" {
		o.profile = rctest.RGW
		o.profile.StreamChunk = 0
	}
	r := &rig{t: t, own: newEnd(t, o.own), done: make(chan struct{}, 1000)}
	r.seg = r.own.region(t, regionSize)
	theirs := testdevice.Open(t, o.theirs)
	gid := testdevice.GID(t, theirs)
	po := rctest.Options{
		Device: theirs, GIDIndex: gid.Index, GID: gid.GID, Profile: o.profile, Hooks: o.hooks, Exec: o.exec,
	}
	if o.peer != nil {
		o.peer(&po)
	}
	peer, err := rctest.New(po)
	if err != nil {
		t.Fatal(err)
	}
	r.peer = peer
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		defer func() { r.done <- struct{}{} }()
		peer.ServeHTTP(w, req)
	}))
	r.url = srv.URL
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
		if err := peer.Close(); err != nil {
			t.Errorf("close peer: %v", err)
		}
		if v := peer.Violations(); len(v) > 0 && !o.violations {
			t.Errorf("the client broke the protocol: %q", v)
		}
	})
	r.client = newClient(t, r.own, srv.URL, func(c *rc.ClientOptions) {
		if o.profile.Service != "" {
			c.Service = o.profile.Service
		}
		if o.client != nil {
			o.client(c)
		}
	})
	return r
}

func (r *rig) get(ctx context.Context, key string, off int64, n int) (rc.GetResult, error) {
	return r.client.Get(ctx, rc.GetRequest{Bucket: "b", Key: key, Offset: off, Dst: r.seg.Slice(0, n)})
}

func (r *rig) put(ctx context.Context, key string, n int) (rc.PutResult, error) {
	return r.client.Put(ctx, rc.PutRequest{Bucket: "b", Key: key, Src: r.seg.Slice(0, n)})
}

// quiet waits until the peer has no session any more, so that nothing it could
// still write is under way.
func (r *rig) quiet(requests int) {
	r.t.Helper()
	timeout := time.After(clientPatience)
	for range requests {
		select {
		case <-r.done:
		case <-timeout:
			r.t.Fatal("the peer is still busy")
		}
	}
}

func random(n int) []byte {
	p := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16)})
	r.Read(p)
	return p
}

// canary is what somebody else keeps in memory that a transfer gave back.
const canary = 0xA5

func plant(p []byte) {
	for i := range p {
		p[i] = canary
	}
}

func checkCanary(t *testing.T, p []byte) {
	t.Helper()
	for i, b := range p {
		if b != canary {
			t.Fatalf("byte %d of memory that was given back was overwritten", i)
		}
	}
}

// gate holds goroutines until it is opened.
type gate struct {
	reached chan struct{}
	open    chan struct{}
	once    sync.Once
}

func newGate() *gate { return &gate{reached: make(chan struct{}, 100), open: make(chan struct{})} }

func (g *gate) hold() {
	g.reached <- struct{}{}
	<-g.open
}

func (g *gate) release() { g.once.Do(func() { close(g.open) }) }

func (g *gate) await(t *testing.T) {
	t.Helper()
	select {
	case <-g.reached:
	case <-time.After(clientPatience):
		t.Fatal("the peer never came to the held point")
	}
}

// eventually polls until ok; it is for state that has no channel to wait on.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	timeout := time.After(clientPatience)
	for !ok() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("still not: %s", what)
		}
	}
}

func wantError(t *testing.T, err error, action rc.Action, phase rc.Phase) *rc.Error {
	t.Helper()
	e, ok := err.(*rc.Error)
	if !ok {
		t.Fatalf("error %v (%T), want *rc.Error", err, err)
	}
	if e.Action != action || e.Phase != phase {
		t.Fatalf("%v: action %s phase %s, want %s %s", e, e.Action, e.Phase, action, phase)
	}
	return e
}

func wantBytes(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Fatalf("%s: %d bytes differ from the %d wanted", what, len(got), len(want))
	}
}

func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func sizes() []int {
	return []int{1, 4095, 4096, 4097, 64 << 10, 1<<20 + 1}
}

func name(format string, args ...any) string { return fmt.Sprintf(format, args...) }

func textLogger(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }
