package cache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"s3rdmafs/store"
	"s3rdmafs/verbs"
)

// unsafeSource fails fetches of one key as unsafe and keeps the right to
// write to their memory, which it uses before each later answer.
type unsafeSource struct {
	memSource
	mu   sync.Mutex
	late [][]byte
}

func (u *unsafeSource) Read(ctx context.Context, r store.ReadRequest) (int, error) {
	u.mu.Lock()
	if r.Key == "unsafe" {
		u.late = append(u.late, r.Dst.Buf)
		u.mu.Unlock()
		return 0, fmt.Errorf("cannot drain the QP: %w", verbs.ErrUnsafe)
	}
	u.mu.Unlock()
	n, err := u.memSource.Read(ctx, r)
	u.scribble()
	return n, err
}

func (u *unsafeSource) scribble() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, p := range u.late {
		for i := range p {
			p[i] = 0xdb
		}
	}
}

// closeQuarantined ends a cache that can never be closed well, and checks that
// it says so and leaves the memory mapped.
func closeQuarantined(t *testing.T, c *Cache, scribble func()) {
	t.Helper()
	for range 2 {
		err := c.Close(context.Background())
		if !errors.Is(err, ErrHeld) || !errors.Is(err, verbs.ErrUnsafe) {
			t.Errorf("Close: %v", err)
		}
		scribble()
	}
	t.Cleanup(func() { c.arena.mem.Close() })
}

// The memory of a fetch that failed as unsafe is never handed out again: what a late
// packet writes there reaches nobody.
func TestUnsafeMemoryIsNeverReused(t *testing.T) {
	pd := &fakePD{}
	src := &unsafeSource{}
	c, err := New(Options{Size: 4 << 20, PD: pd, Source: src})
	if err != nil {
		t.Fatal(err)
	}
	const lost = 3
	for i := range int64(lost) {
		s := openStream(t, c, key("unsafe", fmt.Sprint(i), 200<<10))
		if err := checkRead(t.Context(), s, 0, 10); !errors.Is(err, verbs.ErrUnsafe) {
			t.Fatalf("got %v", err)
		}
		checkInvariants(t, c)
	}
	if got, want := c.Stats().Quarantined, int64(lost*13*unitSize); got != want {
		t.Errorf("%d bytes in quarantine, want %d", got, want)
	}
	s := openStream(t, c, key("x", "e", 64<<20))
	readSeq(t, s, 0, 64<<20, 128<<10)
	for n := c.MaxStaging(); n > 0; n /= 2 {
		for {
			r := c.TryStaging(n)
			if r == nil {
				break
			}
			defer r.Release()
			fill(r.Bytes(), "staging", "e", 0)
			src.scribble()
			if string(r.Bytes()) != string(content("staging", "e", 0, n)) {
				t.Fatal("staging is in reach of a late packet")
			}
		}
	}
	checkInvariants(t, c)
}

func TestQuarantineKeepsMRAndMapping(t *testing.T) {
	pd := &fakePD{}
	src := &unsafeSource{}
	c, err := New(Options{Size: 4 << 20, PD: pd, Source: src})
	if err != nil {
		t.Fatal(err)
	}
	s := openStream(t, c, key("unsafe", "e", 1000))
	checkRead(t.Context(), s, 0, 10)
	mr := func() uint32 {
		c.arena.slabs[0].regMu.Lock()
		defer c.arena.slabs[0].regMu.Unlock()
		return c.arena.slabs[0].mr.RKey()
	}
	before := mr()
	// A failed transfer in the same slab retires the rkey, but the slab never
	// runs empty.
	src.hook = func(context.Context, store.ReadRequest) error { return errors.New("boom") }
	checkRead(t.Context(), openStream(t, c, key("x", "e", 1000)), 0, 10)
	src.hook = nil
	readSeq(t, openStream(t, c, key("y", "e", 8<<20)), 0, 8<<20, 128<<10)
	if mr() != before {
		t.Error("the MR over quarantined memory was closed")
	}
	closeQuarantined(t, c, src.scribble)
	if mrs, _ := pd.registered(); mrs == 0 {
		t.Error("Close deregistered quarantined memory")
	}
}

func TestQuarantineOfStaging(t *testing.T) {
	c, err := New(Options{Size: 1 << 20, Source: &memSource{}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Staging(t.Context(), 1000)
	if err != nil {
		t.Fatal(err)
	}
	r.Quarantine(verbs.ErrUnsafe)
	r.Quarantine(verbs.ErrUnsafe)
	r.Release()
	if s := c.Stats(); s.Quarantined != unitSize || s.Quarantines != 1 || s.Staging != 0 {
		t.Errorf("stats %+v", s)
	}
	checkInvariants(t, c)
	closeQuarantined(t, c, func() { r.seg.Buf[0]++ })
}

func TestReadsAndWritesFailWhenAllMemoryIsLost(t *testing.T) {
	src := &unsafeSource{}
	c, err := New(Options{Size: 1 << 20, Source: src})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		checkRead(t.Context(), openStream(t, c, key("unsafe", fmt.Sprint(i), 128<<10)), 0, 10)
	}
	if s := c.Stats(); s.Quarantined != 1<<20 {
		t.Fatalf("%d bytes in quarantine", s.Quarantined)
	}
	if err := checkRead(t.Context(), openStream(t, c, key("x", "e", 10)), 0, 10); !errors.Is(err, ErrExhausted) {
		t.Errorf("read: %v", err)
	}
	if _, err := c.Staging(t.Context(), 1); !errors.Is(err, ErrExhausted) {
		t.Errorf("staging: %v", err)
	}
	closeQuarantined(t, c, src.scribble)
}
