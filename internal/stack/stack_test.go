package stack_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"s3rdmafs/cache"
	"s3rdmafs/fs"
	"s3rdmafs/gateway"
	"s3rdmafs/internal/stack"
	"s3rdmafs/internal/testenv"
	"s3rdmafs/store"
	"s3rdmafs/token"
	"s3rdmafs/verbs"
	"s3rdmafs/verbs/provider"
	"s3rdmafs/verbs/shm"
)

// patience bounds every wait; nothing asserts how long it took.
const patience = 30 * time.Second

const objectSize = 1 << 20

// machine is a stack on software devices and the gateway it talks to.
type machine struct {
	*stack.Stack
	t      *testing.T
	env    *testenv.Env
	bucket string
	log    *logText
}

// logText collects a log.
type logText struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logText) has(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.b.String(), s)
}

func newMachine(t *testing.T, o stack.Options, g testenv.Options) *machine {
	t.Helper()
	g.RDMA = true
	m := &machine{t: t, env: testenv.Start(t, g), log: &logText{}}
	m.bucket = m.env.NewBucket("")
	m.open(m.env.Endpoint, o)
	return m
}

func (m *machine) open(endpoint string, o stack.Options) {
	m.t.Helper()
	o.Store = store.Options{
		Endpoint: endpoint, Region: m.env.Region, RetryFor: 5 * time.Second,
		Credentials: credentials.NewStaticV4(m.env.AccessKey, m.env.SecretKey, ""),
	}
	if o.Device == "" {
		o.Device = provider.Software
	}
	o.CacheSize = 64 << 20
	o.Logger = slog.New(slog.NewTextHandler(m.log, nil))
	var err error
	if m.Stack, err = stack.Open(m.t.Context(), o); err != nil {
		m.t.Fatal(err)
	}
	s := m.Stack
	m.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			m.t.Errorf("close: %v", err)
		}
		if m.t.Failed() {
			m.t.Logf("log:\n%s", m.log.b.String())
		}
	})
}

func (m *machine) device(i int) *shm.Device { return m.Devices()[i].(*shm.Device) }

func content(n int) []byte {
	p := make([]byte, n)
	rand.NewChaCha8([32]byte{1, byte(n)}).Read(p)
	return p
}

func (m *machine) buffer() *stack.Buffer {
	m.t.Helper()
	b, err := m.NewBuffer(objectSize)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		if err := b.Close(); err != nil {
			m.t.Errorf("close buffer: %v", err)
		}
	})
	return b
}

// read reads the object "key" of objectSize bytes into b, and compares.
func (m *machine) read(b *stack.Buffer) error {
	seg := b.Segment()
	clear(seg.Buf)
	_, err := m.Store.Read(m.t.Context(), store.ReadRequest{Bucket: m.bucket, Key: "key", Dst: seg, ObjectSize: objectSize})
	if err == nil && !bytes.Equal(seg.Buf, content(objectSize)) {
		err = errors.New("other bytes than the object's")
	}
	return err
}

func (m *machine) write(b *stack.Buffer, key string) error {
	seg := b.Segment()
	copy(seg.Buf, content(objectSize))
	_, err := m.Store.Put(m.t.Context(), store.PutRequest{Bucket: m.bucket, Key: key, Src: seg})
	return err
}

func (m *machine) eventually(what string, ok func() bool) {
	m.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	timeout := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-timeout:
			m.t.Fatalf("still not: %s; %+v", what, m.Stats().Rails)
		}
	}
}

func (m *machine) railIs(i int, usable bool) {
	m.t.Helper()
	m.eventually(fmt.Sprintf("rail %d usable: %v", i, usable), func() bool { return m.Stats().Rails[i].Usable == usable })
}

// transport runs f and says by what its bytes moved.
func (m *machine) transport(f func() error) string {
	m.t.Helper()
	before := m.Stats().Store
	if err := f(); err != nil {
		m.t.Fatal(err)
	}
	after := m.Stats().Store
	rdma := after.Read.RDMA.Bytes - before.Read.RDMA.Bytes + after.Write.RDMA.Bytes - before.Write.RDMA.Bytes
	http := after.Read.HTTP.Bytes - before.Read.HTTP.Bytes + after.Write.HTTP.Bytes - before.Write.HTTP.Bytes
	switch {
	case rdma == objectSize && http == 0:
		return "RDMA"
	case http == objectSize && rdma == 0:
		return "HTTP"
	}
	return fmt.Sprintf("%d bytes by RDMA and %d by HTTP", rdma, http)
}

func (m *machine) wantBy(transport string, b *stack.Buffer) {
	m.t.Helper()
	if got := m.transport(func() error { return m.write(b, "other") }); got != transport {
		m.t.Errorf("write went by %s, want %s", got, transport)
	}
	if got := m.transport(func() error { return m.read(b) }); got != transport {
		m.t.Errorf("read went by %s, want %s", got, transport)
	}
}

func TestPortDownAndUp(t *testing.T) {
	m := newMachine(t, stack.Options{}, testenv.Options{})
	m.env.Put(m.bucket, "key", content(objectSize))
	b := m.buffer()
	m.wantBy("RDMA", b)
	for range 2 {
		m.device(0).SetPortUp(false)
		m.railIs(0, false)
		m.wantBy("HTTP", b)
		if s := m.Stats(); s.Rails[0].Reason != "port down" || s.Store.Fallbacks["port down"] == 0 {
			t.Errorf("reason %q, fallbacks %v", s.Rails[0].Reason, s.Store.Fallbacks)
		}
		m.device(0).SetPortUp(true)
		m.railIs(0, true)
		m.wantBy("RDMA", b)
	}
	if !m.log.has("RDMA port out of use: port down") || !m.log.has("RDMA port back in use") {
		t.Error("the log does not tell")
	}
}

func TestPortDownWithModeRequire(t *testing.T) {
	m := newMachine(t, stack.Options{RDMA: store.ModeRequire}, testenv.Options{})
	m.env.Put(m.bucket, "key", content(objectSize))
	b := m.buffer()
	m.device(0).SetPortUp(false)
	m.railIs(0, false)
	for _, err := range []error{m.read(b), m.write(b, "other")} {
		if !errors.Is(err, store.ErrRDMA) || !strings.Contains(err.Error(), "port down") {
			t.Errorf("error %v", err)
		}
	}
	m.device(0).SetPortUp(true)
	m.railIs(0, true)
	m.wantBy("RDMA", b)
}

func TestDeviceFatal(t *testing.T) {
	m := newMachine(t, stack.Options{}, testenv.Options{})
	m.env.Put(m.bucket, "key", content(objectSize))
	b := m.buffer()
	m.device(0).Emit(verbs.Event{Type: verbs.EventDeviceFatal})
	m.railIs(0, false)
	m.wantBy("HTTP", b)
	if r := m.Stats().Rails[0]; r.Reason != "device failed" || !m.log.has("device failed") {
		t.Errorf("reason %q", r.Reason)
	}
}

// The server's port: clients are told at once, use HTTP, and come back.
func TestServerPortDown(t *testing.T) {
	dev, err := shm.Open(shm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	g, err := gateway.New(gateway.Options{
		Dir: t.TempDir(), AccessKey: testenv.AccessKey, SecretKey: testenv.SecretKey,
		Buckets: []string{"bucket"}, RDMA: &gateway.RDMA{Device: dev}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(nil)
	ln := srv.Listener
	go g.Serve(ln)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := errors.Join(g.Close(ctx), dev.Close()); err != nil {
			t.Error(err)
		}
	})
	m := &machine{t: t, bucket: "bucket", log: &logText{},
		env: &testenv.Env{Region: testenv.Region, AccessKey: testenv.AccessKey, SecretKey: testenv.SecretKey}}
	m.open("http://"+ln.Addr().String(), stack.Options{})
	b := m.buffer()
	if err := m.write(b, "key"); err != nil {
		t.Fatal(err)
	}
	m.wantBy("RDMA", b)
	dev.(*shm.Device).SetPortUp(false)
	m.eventually("HTTP", func() bool { return m.transport(func() error { return m.read(b) }) == "HTTP" })
	m.wantBy("HTTP", b)
	dev.(*shm.Device).SetPortUp(true)
	m.eventually("RDMA again", func() bool { return m.transport(func() error { return m.read(b) }) == "RDMA" })
	m.wantBy("RDMA", b)
}

// Through a mount: whatever the port does meanwhile, readers and writers see
// right bytes and no error.
func TestMountOverFlappingPort(t *testing.T) {
	if _, err := os.Stat("/dev/fuse"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs /dev/fuse, and root to mount without a helper program")
	}
	m := newMachine(t, stack.Options{Device: "shm,shm"}, testenv.Options{})
	const files, size = 6, 3<<20 + 5
	for i := range files {
		m.env.Put(m.bucket, fmt.Sprint("in", i), content(size+i))
	}
	dir := t.TempDir()
	mounted, err := fs.Mount(t.Context(), dir, fs.Options{Store: m.Store, Cache: m.Cache, Bucket: m.bucket, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := mounted.Unmount(ctx); err != nil {
			t.Error(err)
		}
	}()

	var over atomic.Bool
	var flaps sync.WaitGroup
	for i := range 2 {
		flaps.Go(func() {
			// A change is made once the one before had its effect.
			for !over.Load() {
				m.device(i).SetPortUp(false)
				m.railIs(i, false)
				m.device(i).SetPortUp(true)
				m.railIs(i, true)
			}
		})
	}
	var users sync.WaitGroup
	for i := range files {
		users.Go(func() {
			want := content(size + i)
			for round := range 4 {
				got, err := os.ReadFile(filepath.Join(dir, fmt.Sprint("in", i)))
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("read %d: %d bytes, %v", i, len(got), err)
					return
				}
				m.Cache.Invalidate(m.bucket, fmt.Sprint("in", i))
				if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("out", i)), want[round:], 0o600); err != nil {
					t.Errorf("write %d: %v", i, err)
					return
				}
			}
		})
	}
	users.Wait()
	over.Store(true)
	flaps.Wait()
	for i := range files {
		if got := m.env.Get(m.bucket, fmt.Sprint("out", i)); !bytes.Equal(got, content(size + i)[3:]) {
			t.Errorf("object of file %d has other bytes", i)
		}
	}
	if s := m.Stats().Cache; s.Quarantined != 0 {
		t.Errorf("%d bytes are quarantined", s.Quarantined)
	}
}

// Two rails carry transfers in turn; while one is down the other carries all, also of
// memory that was registered with the first, and so even mode require works on.
func TestRails(t *testing.T) {
	m := newMachine(t, stack.Options{Device: "shm,shm", RDMA: store.ModeRequire}, testenv.Options{})
	m.env.Put(m.bucket, "key", content(objectSize))
	buffers := []*stack.Buffer{m.buffer(), m.buffer()}
	gets := func() (n [2]uint64) {
		for i, r := range m.Stats().Rails {
			n[i] = r.Gets
		}
		return n
	}
	round := func(want [2]uint64) {
		t.Helper()
		before := gets()
		for _, b := range buffers {
			m.wantBy("RDMA", b)
		}
		after := gets()
		if got := [2]uint64{after[0] - before[0], after[1] - before[1]}; got != want {
			t.Errorf("GETs by rail: %v, want %v", got, want)
		}
	}
	round([2]uint64{1, 1})
	m.device(1).SetPortUp(false)
	m.railIs(1, false)
	round([2]uint64{2, 0})
	m.device(1).SetPortUp(true)
	m.railIs(1, true)
	round([2]uint64{1, 1})
	m.device(0).SetPortUp(false)
	m.railIs(0, false)
	round([2]uint64{0, 2})
	m.device(0).SetPortUp(true)
	m.railIs(0, true)

	// Of the cache's memory as well.
	m.env.Put(m.bucket, "large", content(16<<20))
	before := gets()
	info, err := m.Store.Head(t.Context(), m.bucket, "large")
	if err != nil {
		t.Fatal(err)
	}
	m.readCached(info)
	after := gets()
	if after[0] == before[0] || after[1] == before[1] {
		t.Errorf("GETs by rail: %v, before %v: want some of each", after, before)
	}
	if s := m.Stats(); s.RDMA.Gets != after[0]+after[1] || s.Transport.Device != "shm,shm" {
		t.Errorf("%d GETs in all, of %v; device %s", s.RDMA.Gets, after, s.Transport.Device)
	}
}

func TestBadDevices(t *testing.T) {
	for device, want := range map[string]string{
		"shm,nosuch0": "nosuch0",
		"shm:0":       "not a device with a port",
		"shm:x":       "not a device with a port",
		"shm:2":       "no port 2",
		"":            "",
	} {
		s, err := stack.Open(t.Context(), stack.Options{
			Store: store.Options{Endpoint: "http://127.0.0.1:1", Credentials: credentials.NewStaticV4("a", "b", "")}, Device: device, CacheSize: 1 << 20,
		})
		if want == "" {
			if err != nil {
				t.Errorf("%q: %v", device, err)
			} else if err := s.Close(t.Context()); err != nil {
				t.Error(err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", device, err, want)
		}
	}
}

// The path MTU reaches the queue pairs: both ends must have the same.
func TestPathMTU(t *testing.T) {
	small := testenv.Options{Gateway: gateway.Options{RDMA: &gateway.RDMA{MTU: verbs.MTU1024}}}
	m := newMachine(t, stack.Options{Path: provider.Options{PathMTU: verbs.MTU1024}}, small)
	m.env.Put(m.bucket, "key", content(objectSize))
	m.wantBy("RDMA", m.buffer())
	if r := m.Stats().Rails[0]; r.MTU != 1024 {
		t.Errorf("path MTU %d", r.MTU)
	}
	m.open(m.env.Endpoint, stack.Options{})
	m.wantBy("HTTP", m.buffer())
}

// A server whose GID no own one can reach is not usable by RDMA (section 12.4).
func TestOtherGIDFamily(t *testing.T) {
	for _, mode := range []store.Mode{store.ModeAuto, store.ModeRequire} {
		t.Run(mode.String(), func(t *testing.T) {
			m := &machine{t: t, env: testenv.Start(t, testenv.Options{RDMA: true}), log: &logText{}}
			m.bucket = m.env.NewBucket("")
			m.env.Put(m.bucket, "key", content(objectSize))
			var prepares atomic.Int32
			m.open(otherFamily(t, m.env.Endpoint, &prepares), stack.Options{RDMA: mode})
			b := m.buffer()
			if mode == store.ModeRequire {
				for range 2 {
					if err := m.read(b); !errors.Is(err, store.ErrRDMA) || !strings.Contains(err.Error(), "no GID of the peer's address family") {
						t.Errorf("error %v", err)
					}
				}
			} else {
				m.wantBy("HTTP", b)
				m.wantBy("HTTP", b)
			}
			r := m.Stats().Rails[0]
			if r.Usable || !strings.Contains(r.Reason, "no GID of the peer's address family") || !m.log.has("RDMA not used") {
				t.Errorf("usable %v, reason %q", r.Usable, r.Reason)
			}
			if n := prepares.Load(); n != 1 {
				t.Errorf("%d PREPAREs, want one", n)
			}
		})
	}
}

// otherFamily is a proxy that gives the server's queue pairs a link-local GID.
func otherFamily(t *testing.T, endpoint string, prepares *atomic.Int32) string {
	t.Helper()
	to, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host // which is signed
		},
		ModifyResponse: func(r *http.Response) error {
			reply := r.Header.Get(token.HeaderReply)
			if r.Request.URL.Path != token.PathPrepare || reply == "" {
				return nil
			}
			prepares.Add(1)
			tok, err := token.ParseReply(reply)
			tok.GID = [16]byte{0: 0xfe, 1: 0x80, 15: 1}
			r.Header.Set(token.HeaderReply, tok.Reply())
			return err
		},
	}
	srv := httptest.NewServer(proxy)
	t.Cleanup(srv.Close)
	return srv.URL
}

// readCached reads a whole object by way of the cache.
func (m *machine) readCached(i store.Info) {
	m.t.Helper()
	o := m.Cache.Open(cache.Key{Bucket: i.Bucket, Key: i.Key, ETag: i.ETag, Size: i.Size})
	defer o.Close()
	got := make([]byte, i.Size)
	if _, err := o.NewStream().ReadAt(m.t.Context(), got, 0); err != nil {
		m.t.Fatal(err)
	}
	if !bytes.Equal(got, content(int(i.Size))) {
		m.t.Errorf("%s: other bytes than the object's", i.Key)
	}
}
