package cache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"s3rdmafs/store"
	"s3rdmafs/verbs"
)

// fakePD registers memory as a device with a limit would.
type fakePD struct {
	verbs.PD
	limit int // bytes; 0: none

	mu    sync.Mutex
	next  uint32
	bytes int
	live  map[uint32]*fakeMR
}

type fakeMR struct {
	pd     *fakePD
	key    uint32
	buf    []byte
	access verbs.Access
}

func (p *fakePD) RegMR(mem *verbs.Memory, off, length int, access verbs.Access) (verbs.MR, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.limit != 0 && p.bytes+length > p.limit {
		return nil, verbs.ErrMemlock
	}
	p.next++
	m := &fakeMR{pd: p, key: p.next, buf: mem.Bytes()[off : off+length], access: access}
	if p.live == nil {
		p.live = map[uint32]*fakeMR{}
	}
	p.live[m.key] = m
	p.bytes += length
	return m, nil
}

func (p *fakePD) registered() (mrs, bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.live), p.bytes
}

func (m *fakeMR) LKey() uint32  { return m.key }
func (m *fakeMR) RKey() uint32  { return m.key }
func (m *fakeMR) Addr() uint64  { return uint64(m.key) << 32 }
func (m *fakeMR) Bytes() []byte { return m.buf }
func (m *fakeMR) Close() error {
	m.pd.mu.Lock()
	defer m.pd.mu.Unlock()
	if m.pd.live[m.key] != m {
		return verbs.ErrClosed
	}
	delete(m.pd.live, m.key)
	m.pd.bytes -= len(m.buf)
	return nil
}

// mrSource checks each segment against the MR it names, before and after the
// transfer.
type mrSource struct {
	memSource
	pd           *fakePD
	unregistered int
}

func (m *mrSource) Read(ctx context.Context, r store.ReadRequest) (int, error) {
	if r.Dst.MR == nil {
		m.pd.mu.Lock()
		m.unregistered++
		m.pd.mu.Unlock()
		return m.memSource.Read(ctx, r)
	}
	if err := m.pd.check(r.Dst); err != nil {
		return 0, err
	}
	if r.Dst.MR.(*fakeMR).access != verbs.AccessLocalWrite|verbs.AccessRemoteWrite {
		return 0, errors.New("a peer cannot write here")
	}
	n, err := m.memSource.Read(ctx, r)
	if lost := m.pd.check(r.Dst); lost != nil {
		return 0, lost
	}
	return n, err
}

// check reports whether s lies where its MR says, and that is still registered.
func (p *fakePD) check(s verbs.Segment) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	mr := p.live[s.MR.RKey()]
	if mr == nil {
		return errors.New("the MR of a transfer was closed")
	}
	if &mr.buf[s.Off] != &s.Buf[0] {
		return errors.New("segment is not where its MR says")
	}
	return nil
}

func TestSlabsAreRegisteredWhenNeeded(t *testing.T) {
	pd := &fakePD{}
	c := newCache(t, Options{Size: 8 << 20, PD: pd, Source: &mrSource{pd: pd}})
	if mrs, bytes := pd.registered(); mrs != 1 || bytes != 1<<20 || c.Stats().Pinned != 1<<20 {
		t.Errorf("at first: %d MRs, %d bytes, pinned %d", mrs, bytes, c.Stats().Pinned)
	}
	s := openStream(t, c, key("x", "e", 100<<20))
	for off := int64(0); off < 20<<20; off += 128 << 10 {
		wantBytes(t, s, off, 128<<10)
	}
	if mrs, bytes := pd.registered(); mrs != 8 || int64(bytes) != c.Stats().Pinned || bytes != 8<<20 {
		t.Errorf("when full: %d MRs, %d bytes, pinned %d", mrs, bytes, c.Stats().Pinned)
	}
	t.Cleanup(func() {
		closeEmpty(t, c)
		if mrs, bytes := pd.registered(); mrs != 0 || bytes != 0 {
			t.Errorf("after Close %d MRs, %d bytes", mrs, bytes)
		}
	})
}

func TestRKeyIsRetiredAfterAFailedTransfer(t *testing.T) {
	pd := &fakePD{}
	boom := errors.New("boom")
	src := &mrSource{pd: pd}
	fail := true
	src.hook = func(_ context.Context, r store.ReadRequest) error {
		if fail {
			r.RDMAFailed(boom)
			return boom
		}
		return nil
	}
	c := newCache(t, Options{Size: 8 << 20, PD: pd, Source: src})
	s := openStream(t, c, key("x", "e", 1000))
	if err := checkRead(t.Context(), s, 0, 10); !errors.Is(err, boom) {
		t.Fatal(err)
	}
	fail = false
	wantBytes(t, s, 0, 1000)
	src.mu.Lock()
	first, second := src.reads[0].Dst, src.reads[1].Dst
	src.mu.Unlock()
	if &first.Buf[0] != &second.Buf[0] {
		t.Fatal("the test needs the same memory twice")
	}
	if first.MR.RKey() == second.MR.RKey() {
		t.Error("the rkey of a failed transfer was used again for empty memory")
	}
	if c.Stats().Pinned != 1<<20 {
		t.Errorf("%d bytes pinned", c.Stats().Pinned)
	}
}

// A slab is registered anew only when nothing in it is in use: not under a
// transfer that goes on, nor under a view. Meanwhile nothing new goes there.
func TestRetiredSlabKeepsItsMRWhileInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pd := &fakePD{}
		src := &mrSource{pd: pd}
		g := newGate()
		src.hook = func(ctx context.Context, r store.ReadRequest) error {
			switch r.Key {
			case "slow":
				return g.hook(ctx, r)
			case "bad":
				r.RDMAFailed(errBoom)
				return errBoom
			}
			return nil
		}
		c := newCache(t, Options{Size: 1 << 20, PD: pd, Source: src})
		open := func(k string, size int64) *Stream { return openStream(t, c, key(k, "e", size)) }
		slow := open("slow", 1000)
		done := make(chan error)
		go func() { done <- checkRead(t.Context(), slow, 0, 1000) }()
		synctest.Wait()
		v, err := open("seen", 1000).View(t.Context(), 0, 1000)
		if err != nil {
			t.Fatal(err)
		}
		old := v.block.slab.mr
		if err := checkRead(t.Context(), open("bad", 1000), 0, 10); !errors.Is(err, errBoom) {
			t.Fatal(err)
		}
		for i := range 7 {
			v, err := open(fmt.Sprint("x", i), 128<<10).View(t.Context(), 0, 1)
			if err != nil {
				t.Fatal(err)
			}
			defer v.Release()
		}
		// There is room in the retired slab alone: the next one waits.
		last := open("y", 1000)
		waited := make(chan error)
		go func() { waited <- checkRead(t.Context(), last, 0, 1000) }()
		synctest.Wait()
		if w := c.Stats().Waiting; w != 1 {
			t.Errorf("%d wait", w)
		}
		g.pass <- nil
		if err := <-done; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if w := c.Stats().Waiting; w != 1 {
			t.Errorf("%d wait while there is a view", w)
		}
		checkInvariants(t, c)
		v.Release()
		if err := <-waited; err != nil {
			t.Error(err)
		}
		src.mu.Lock()
		defer src.mu.Unlock()
		if mr := src.reads[len(src.reads)-1].Dst.MR; mr == old || &mr.Bytes()[0] != &old.Bytes()[0] {
			t.Error("the slab was not registered anew")
		}
	})
}

// In a full cache, too, nothing is fetched under the rkey of a failed transfer any
// more: not when HTTP brought the bytes instead, either.
func TestNothingIsFetchedUnderARetiredRKey(t *testing.T) {
	for _, saved := range []bool{false, true} {
		t.Run(fmt.Sprintf("HTTP helps %v", saved), func(t *testing.T) {
			pd := &fakePD{}
			src := &mrSource{pd: pd}
			src.hook = func(_ context.Context, r store.ReadRequest) error {
				if r.Key != "bad" {
					return nil
				}
				r.RDMAFailed(errBoom)
				if saved {
					return nil
				}
				return errBoom
			}
			c := newCache(t, Options{Size: 8 << 20, PD: pd, Source: src})
			s := openStream(t, c, key("x", "e", 1<<50))
			at := func(i int64) { wantBytes(t, s, i<<30+5, 10) }
			// A view in each slab keeps it from being renewed.
			for i := int64(0); c.Stats().Free > 0; i++ {
				at(i)
				if i%8 == 0 {
					v, err := s.View(t.Context(), i<<30+5, 10)
					if err != nil {
						t.Fatal(err)
					}
					defer v.Release()
				}
			}
			if err := checkRead(t.Context(), openStream(t, c, key("bad", "e", 1000)), 0, 1000); (err == nil) != saved {
				t.Fatal(err)
			}
			failed := src.count() - 1
			for i := range int64(560) {
				at(500 + i)
			}
			checkInvariants(t, c)
			src.mu.Lock()
			defer src.mu.Unlock()
			rkey, again := src.reads[failed].Dst.MR.RKey(), 0
			for _, r := range src.reads[failed+1:] {
				if r.Dst.MR.RKey() == rkey {
					again++
				}
			}
			if again > 0 {
				t.Errorf("%d of 560 fetches under the rkey of the failed one", again)
			}
		})
	}
}

// A fetch that fails without RDMA costs nobody cached bytes.
func TestOtherFailuresRetireNothing(t *testing.T) {
	pd := &fakePD{}
	src := &mrSource{pd: pd}
	src.hook = func(_ context.Context, r store.ReadRequest) error {
		if r.Key == "bad" {
			return errBoom
		}
		return nil
	}
	c := newCache(t, Options{Size: 8 << 20, PD: pd, Source: src})
	s := openStream(t, c, key("x", "e", 1000))
	wantBytes(t, s, 0, 1000)
	if err := checkRead(t.Context(), openStream(t, c, key("bad", "e", 1000)), 0, 10); !errors.Is(err, errBoom) {
		t.Fatal(err)
	}
	n := src.count()
	wantBytes(t, s, 0, 1000)
	if src.count() != n {
		t.Error("fetched again")
	}
}

func TestMemlockAtStartIsAnError(t *testing.T) {
	if _, err := New(Options{Size: 8 << 20, PD: &fakePD{limit: 1000}, Source: &memSource{}}); !errors.Is(err, verbs.ErrMemlock) {
		t.Errorf("got %v", err)
	}
}

func TestRefusedRegistrationLeavesMemoryUnregistered(t *testing.T) {
	pd := &fakePD{limit: 2 << 20}
	src := &mrSource{pd: pd}
	c := newCache(t, Options{Size: 8 << 20, PD: pd, Source: src})
	s := openStream(t, c, key("x", "e", 6<<20))
	wantBytes(t, s, 0, 6<<20)
	if src.unregistered == 0 || c.Stats().RegistrationErrors == 0 || c.Stats().Pinned != 2<<20 {
		t.Errorf("%d unregistered segments, stats %+v", src.unregistered, c.Stats())
	}
}
