package cache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"s3rdmafs/store"
	"s3rdmafs/verbs"
	"s3rdmafs/verbs/shm"
)

// side is one end of RDMA transfers on the software device.
type side struct {
	dev  verbs.Device
	pd   verbs.PD
	pool *verbs.Pool
	gid  verbs.GID
}

func newSide(t *testing.T) *side {
	t.Helper()
	dev, err := shm.Open(shm.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s := &side{dev: dev}
	gids, err := dev.GIDs(1)
	if err != nil {
		t.Fatal(err)
	}
	s.gid = gids[0].GID
	if s.pd, err = dev.AllocPD(); err != nil {
		t.Fatal(err)
	}
	s.pool, err = verbs.NewPool(dev, verbs.PoolOptions{PD: s.pd, Access: verbs.AccessRemoteWrite})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *side) close(t *testing.T) {
	for _, c := range []interface{ Close() error }{s.pool, s.pd, s.dev} {
		if err := c.Close(); err != nil {
			t.Errorf("close %T: %v", c, err)
		}
	}
}

// pair is two connected QPs.
type pair struct{ client, server *verbs.Conn }

func connect(ctx context.Context, client, server *side) (p pair, err error) {
	if p.client, err = client.pool.Get(ctx); err != nil {
		return p, err
	}
	if p.server, err = server.pool.Get(ctx); err != nil {
		return p, errors.Join(err, p.client.Release(ctx))
	}
	err = errors.Join(
		p.client.Connect(verbs.ConnectAttr{DestQPN: p.server.QPN(), RQPSN: p.server.PSN(), DGID: server.gid, MTU: verbs.MTU4096, Port: 1}),
		p.server.Connect(verbs.ConnectAttr{DestQPN: p.client.QPN(), RQPSN: p.client.PSN(), DGID: client.gid, MTU: verbs.MTU4096, Port: 1}))
	if err != nil {
		err = errors.Join(err, p.release())
	}
	return p, err
}

func (p pair) release() error {
	return errors.Join(p.client.Release(context.Background()), p.server.Release(context.Background()))
}

// rdmaSource writes the bytes with RDMA WRITE WITH IMM, from memory of a server
// into the segment.
type rdmaSource struct {
	client, server *side
	mem            *verbs.Memory
	mr             verbs.MR

	mu   sync.Mutex // one transfer at a time: they share mem
	kept *pair      // of the fetch that failed as unsafe
	last store.ReadRequest
}

func newRDMASource(t *testing.T) *rdmaSource {
	t.Helper()
	s := &rdmaSource{client: newSide(t), server: newSide(t)}
	var err error
	if s.mem, err = verbs.NewMemory("server", defaultBlockSize); err != nil {
		t.Fatal(err)
	}
	if s.mr, err = s.server.pd.RegMR(s.mem, 0, defaultBlockSize, verbs.AccessLocalWrite); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.mr.Close(), s.mem.Close()); err != nil {
			t.Error(err)
		}
		s.client.close(t)
		s.server.close(t)
	})
	return s
}

// write sends the server's first n bytes to an address of the client, and
// gives the completion at the server.
func (s *rdmaSource) write(p pair, addr uint64, rkey uint32, n int) (verbs.WC, error) {
	if err := p.client.PostRecv(verbs.RecvWR{ID: 1}); err != nil {
		return verbs.WC{}, err
	}
	err := p.server.PostSend(verbs.SendWR{
		ID: 2, Opcode: verbs.OpWriteWithImm, Signaled: true, RemoteAddr: addr, RKey: rkey,
		SGEs: []verbs.SGE{{Addr: s.mr.Addr(), Length: uint32(n), LKey: s.mr.LKey()}},
	})
	if err != nil {
		return verbs.WC{}, err
	}
	return <-p.server.Completions(), nil
}

func (s *rdmaSource) Read(ctx context.Context, r store.ReadRequest) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = r
	p, err := connect(ctx, s.client, s.server)
	if err != nil {
		return 0, err
	}
	n := len(r.Dst.Buf)
	fill(s.mem.Bytes()[:n], r.Key, r.ETag, r.Off)
	if r.Key == "unsafe" {
		s.kept = &p
		return 0, fmt.Errorf("the QP stays connected: %w", verbs.ErrUnsafe)
	}
	wc, err := s.write(p, r.Dst.Addr(), r.Dst.MR.RKey(), n)
	if err == nil && wc.Status != verbs.WCSuccess {
		err = errors.New(wc.Status.String())
	}
	if r.Key == "bad" {
		err = errBoom
		r.RDMAFailed(err)
	}
	if err = errors.Join(err, p.release()); err != nil {
		return 0, err
	}
	return n, nil
}

func TestReadsOverRDMA(t *testing.T) {
	src := newRDMASource(t)
	c, err := New(Options{Size: 8 << 20, PD: src.client.pd, Source: src})
	if err != nil {
		t.Fatal(err)
	}
	var g errgroup.Group
	for i := range 4 {
		g.Go(func() error {
			o := c.Open(key(fmt.Sprint("x", i%3), "e", 12<<20+99))
			defer o.Close()
			s := o.NewStream()
			for off := int64(0); off < 12<<20; off += 300 << 10 {
				if err := checkRead(t.Context(), s, off, int(min(300<<10, 12<<20+99-off))); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	checkInvariants(t, c)
	closeEmpty(t, c)
}

// The peer of a failed transfer knows address and rkey. Once the memory is somebody
// else's, they are worth nothing.
func TestStaleRKeyIsRefused(t *testing.T) {
	src := newRDMASource(t)
	c, err := New(Options{Size: 8 << 20, PD: src.client.pd, Source: src})
	if err != nil {
		t.Fatal(err)
	}
	defer closeEmpty(t, c)
	bad := c.Open(key("bad", "e", 100_000))
	defer bad.Close()
	if err := checkRead(t.Context(), bad.NewStream(), 0, 10); !errors.Is(err, errBoom) {
		t.Fatal(err)
	}
	stale := src.last.Dst
	addr, rkey := stale.Addr(), stale.MR.RKey()

	o := c.Open(key("x", "e", 100_000))
	defer o.Close()
	s := o.NewStream()
	wantBytes(t, s, 0, 100_000)
	if &src.last.Dst.Buf[0] != &stale.Buf[0] {
		t.Fatal("the test needs the same memory twice")
	}
	p, err := connect(t.Context(), src.client, src.server)
	if err != nil {
		t.Fatal(err)
	}
	clear(src.mem.Bytes())
	wc, err := src.write(p, addr, rkey, 1000)
	if err != nil || wc.Status != verbs.WCRemAccessErr {
		t.Errorf("a write with the stale rkey: %v, %v", wc.Status, err)
	}
	if err := p.release(); err != nil {
		t.Error(err)
	}
	wantBytes(t, s, 0, 100_000)
}

// A peer whose QP could not be taken away writes long after the fetch was
// given up: the bytes land, and nobody sees them.
func TestLateWriteAfterUnsafeFailureReachesNobody(t *testing.T) {
	src := newRDMASource(t)
	c, err := New(Options{Size: 2 << 20, PD: src.client.pd, Source: src})
	if err != nil {
		t.Fatal(err)
	}
	lost := c.Open(key("unsafe", "e", 100_000))
	defer lost.Close()
	if err := checkRead(t.Context(), lost.NewStream(), 0, 10); !errors.Is(err, verbs.ErrUnsafe) {
		t.Fatal(err)
	}
	target := src.last.Dst
	o := c.Open(key("x", "e", 1<<20)) // stays resident
	defer o.Close()
	s := o.NewStream()
	wantBytes(t, s, 0, 1<<20)

	fill(src.mem.Bytes()[:100_000], "late", "e", 0)
	wc, err := src.write(*src.kept, target.Addr(), target.MR.RKey(), 100_000)
	if err != nil || wc.Status != verbs.WCSuccess {
		t.Fatalf("the late write did not land: %v, %v", wc.Status, err)
	}
	if string(target.Buf) != string(content("late", "e", 0, 100_000)) {
		t.Fatal("the late write landed elsewhere")
	}
	misses := c.Stats().Misses
	wantBytes(t, s, 0, 1<<20)
	if c.Stats().Misses != misses {
		t.Error("the bytes were fetched after the late write came")
	}
	other := c.Open(key("y", "e", 2<<20)) // more than there is room for
	defer other.Close()
	wantBytes(t, other.NewStream(), 0, 2<<20)
	if err := c.Close(t.Context()); !errors.Is(err, verbs.ErrUnsafe) {
		t.Errorf("Close: %v", err)
	}

	// The device must be closed nevertheless.
	if err := src.kept.release(); err != nil {
		t.Error(err)
	}
	if _, err := c.arena.close(); err != nil {
		t.Error(err)
	}
}
