package cache

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"

	"s3rdmafs/store"
	"s3rdmafs/verbs"
)

func TestReadAtGivesTheObjectAtAnyPlaceAndLength(t *testing.T) {
	src := &memSource{}
	c := newCache(t, Options{Size: 16 << 20, Source: src})
	for _, size := range []int64{1, 4095, 16 << 10, 128<<10 + 1, 1 << 20, 2<<20 + 7, 9<<20 + 12345} {
		k := key("x", "e", size)
		for _, n := range []int64{1, 4096, 128 << 10, 1 << 20, 5 << 20} {
			s := openStream(t, c, k)
			for _, off := range []int64{0, 1, size / 2, size - 1} {
				if off < size {
					wantBytes(t, s, off, int(min(n, size-off)))
				}
			}
			s.Close()
		}
		checkInvariants(t, c)
	}
}

func TestReadsEndAtTheObjectsEnd(t *testing.T) {
	c := newCache(t, Options{Size: 1 << 20, Source: &memSource{}})
	ctx := context.Background()
	s := openStream(t, c, key("x", "e", 100))
	p := make([]byte, 64)
	if n, err := s.ReadAt(ctx, p, 90); n != 10 || err != io.EOF {
		t.Errorf("ReadAt over the end: %d, %v", n, err)
	}
	if n, err := s.ReadAt(ctx, p, 100); n != 0 || err != io.EOF {
		t.Errorf("ReadAt at the end: %d, %v", n, err)
	}
	if _, err := s.View(ctx, 1000, 1); err != io.EOF {
		t.Errorf("View past the end: %v", err)
	}
	if _, err := openStream(t, c, key("empty", "e", 0)).View(ctx, 0, 1); err != io.EOF {
		t.Errorf("View of an empty object: %v", err)
	}
	if _, err := s.View(ctx, -1, 1); !errors.Is(err, ErrInvalid) {
		t.Errorf("View at -1: %v", err)
	}
	if _, err := s.View(ctx, 0, 0); !errors.Is(err, ErrInvalid) {
		t.Errorf("View of nothing: %v", err)
	}
}

func TestMemoryIsCostedExactly(t *testing.T) {
	c := newCache(t, Options{Size: 64 << 20, Source: &memSource{}})
	const size = 1<<20 + 200<<10 + 1
	wantBytes(t, openStream(t, c, key("x", "e", size)), 0, size)
	if got, want := c.Stats().Resident, int64(size+unitSize-1)/unitSize*unitSize; got != want {
		t.Errorf("an object of %d bytes takes %d, want %d", size, got, want)
	}
}

func TestSmallReadOfALargeObjectFetchesASmallBlock(t *testing.T) {
	src := &memSource{}
	c := newCache(t, Options{Size: 64 << 20, Source: src})
	wantBytes(t, openStream(t, c, key("x", "e", 1<<30)), 123<<20+5, 4096)
	if got := src.asked(); got != defaultSmallBlock {
		t.Errorf("a read of 4 KiB asked for %d bytes", got)
	}
}

func TestSmallObjectIsOneFetch(t *testing.T) {
	src := &memSource{}
	c := newCache(t, Options{Size: 64 << 20, Source: src})
	const size = wholeObject - 5
	s := openStream(t, c, key("x", "e", size))
	for off := int64(0); off < size; off += 128 << 10 {
		wantBytes(t, s, off, int(min(128<<10, size-off)))
	}
	if n := src.count(); n != 1 {
		t.Errorf("%d fetches", n)
	}
}

func TestReopenedObjectIsAHitAndAnotherVersionIsNot(t *testing.T) {
	src := &memSource{}
	c := newCache(t, Options{Size: 4 << 20, Source: src})
	read := func(k Key) {
		o := c.Open(k)
		defer o.Close()
		wantBytes(t, o.NewStream(), 0, 1000)
	}
	read(key("x", "one", 1000))
	read(key("x", "one", 1000))
	if n := src.count(); n != 1 {
		t.Errorf("%d fetches for two opens of one version", n)
	}
	read(key("x", "two", 1000))
	if n := src.count(); n != 2 {
		t.Errorf("%d fetches for two versions", n)
	}
	if s := c.Stats(); s.Hits != 1 || s.Misses != 2 || s.Objects != 2 {
		t.Errorf("stats %+v", s)
	}
}

func TestReadersOfOneBlockShareAFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		src := &memSource{hook: g.hook}
		c := newCache(t, Options{Size: 4 << 20, Source: src})
		o := c.Open(key("x", "e", 100<<10))
		defer o.Close()
		errs := make(chan error)
		const readers = 10
		for range readers {
			go func() { errs <- checkRead(t.Context(), o.NewStream(), 10, 1000) }()
		}
		synctest.Wait()
		g.pass <- nil
		for range readers {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if n := src.count(); n != 1 {
			t.Errorf("%d fetches", n)
		}
		if s := c.Stats(); s.Misses != 1 || s.Joined != readers-1 {
			t.Errorf("%d misses, %d joined", s.Misses, s.Joined)
		}
		checkInvariants(t, c)
	})
}

func TestCancelledReaderLeavesTheFetchToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		src := &memSource{hook: g.hook}
		c := newCache(t, Options{Size: 4 << 20, Source: src})
		o := c.Open(key("x", "e", 100<<10))
		defer o.Close()
		ctx, cancel := context.WithCancel(t.Context())
		first, second := make(chan error), make(chan error)
		go func() { first <- checkRead(ctx, o.NewStream(), 0, 1000) }()
		synctest.Wait()
		go func() { second <- checkRead(t.Context(), o.NewStream(), 0, 1000) }()
		synctest.Wait()
		cancel()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled reader got %v", err)
		}
		checkInvariants(t, c)
		g.pass <- nil
		if err := <-second; err != nil {
			t.Error(err)
		}
		if n := src.count(); n != 1 {
			t.Errorf("%d fetches", n)
		}
	})
}

func TestFetchWithoutReadersStaysInTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		src := &memSource{hook: g.hook}
		c := newCache(t, Options{Size: 4 << 20, Source: src})
		o := c.Open(key("x", "e", 100<<10))
		defer o.Close()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		s := o.NewStream()
		go func() { done <- checkRead(ctx, s, 0, 1000) }()
		synctest.Wait()
		cancel()
		<-done
		g.pass <- nil
		synctest.Wait()
		wantBytes(t, s, 0, 1000)
		if n := src.count(); n != 1 {
			t.Errorf("%d fetches", n)
		}
	})
}

func TestFailedFetchIsToldToItsWaitersOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		c := newCache(t, Options{Size: 4 << 20, Source: &memSource{hook: g.hook}})
		o := c.Open(key("x", "e", 100<<10))
		defer o.Close()
		boom := errors.New("boom")
		errs := make(chan error)
		for range 3 {
			go func() { errs <- checkRead(t.Context(), o.NewStream(), 0, 1000) }()
		}
		synctest.Wait()
		g.pass <- boom
		for range 3 {
			if err := <-errs; !errors.Is(err, boom) {
				t.Errorf("waiter got %v", err)
			}
		}
		checkInvariants(t, c)
		if s := c.Stats(); s.InUse != 0 {
			t.Errorf("%d bytes in use after a failed fetch", s.InUse)
		}
		go func() { errs <- checkRead(t.Context(), o.NewStream(), 0, 1000) }()
		synctest.Wait()
		g.pass <- nil
		if err := <-errs; err != nil {
			t.Errorf("read after a failed one: %v", err)
		}
	})
}

type shortSource struct{}

func (shortSource) Read(_ context.Context, r store.ReadRequest) (int, error) {
	return len(r.Dst.Buf) - 1, nil
}

func TestShortFetchIsNotBelieved(t *testing.T) {
	c := newCache(t, Options{Size: 4 << 20, Source: shortSource{}})
	if err := checkRead(t.Context(), openStream(t, c, key("x", "e", 1000)), 0, 10); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v", err)
	}
}

func TestChangedObjectIsNeverMixed(t *testing.T) {
	src := &memSource{}
	c := newCache(t, Options{Size: 8 << 20, Source: src})
	k := key("x", "old", 4<<20)
	old := openStream(t, c, k)
	other := openStream(t, c, key("y", "e", 1000))
	wantBytes(t, old, 3<<20, 1000)
	wantBytes(t, other, 0, 1000)
	src.change("x", "new")
	if err := checkRead(t.Context(), old, 1<<20, 1000); !errors.Is(err, store.ErrChanged) {
		t.Fatalf("read of a version that is gone: %v", err)
	}
	n := src.count()
	if err := checkRead(t.Context(), old, 2<<20, 1000); !errors.Is(err, store.ErrChanged) {
		t.Fatalf("second read: %v", err)
	}
	if src.count() != n {
		t.Error("the source was asked again for a version known to be gone")
	}
	wantBytes(t, old, 3<<20, 1000) // resident
	wantBytes(t, other, 0, 1000)
	wantBytes(t, openStream(t, c, key("x", "new", 4<<20)), 3<<20, 1000)
	checkInvariants(t, c)

	// The old content may come back under its old ETag.
	src.change("x", "old")
	again := openStream(t, c, k)
	wantBytes(t, again, 1<<20, 1000)
	if s := c.Stats(); s.Changed != 1 {
		t.Errorf("%d versions changed", s.Changed)
	}
}

func TestDetachedVersionGoesWithItsLastHandle(t *testing.T) {
	c := newCache(t, Options{Size: 8 << 20, Source: &memSource{}})
	o := c.Open(key("x", "e", 1000))
	s := o.NewStream()
	wantBytes(t, s, 0, 1000)
	c.Invalidate("b", "x")
	wantBytes(t, s, 0, 1000)
	if hits := c.Stats().Hits; hits != 1 {
		t.Errorf("an open handle lost its blocks: %d hits", hits)
	}
	v, err := s.View(t.Context(), 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	o.Close()
	checkInvariants(t, c)
	if string(v.Bytes()) != string(content("x", "e", 0, 10)) {
		t.Error("a view changed")
	}
	v.Release()
	if s := c.Stats(); s.InUse != 0 || s.Objects != 0 {
		t.Errorf("%d bytes, %d objects left", s.InUse, s.Objects)
	}
}

func TestInvalidateDropsIdleVersions(t *testing.T) {
	src := &memSource{}
	c := newCache(t, Options{Size: 8 << 20, Source: src})
	for _, etag := range []string{"a", "b"} {
		o := c.Open(key("x", etag, 1000))
		wantBytes(t, o.NewStream(), 0, 1000)
		o.Close()
	}
	c.Invalidate("b", "x")
	c.Invalidate("b", "never seen")
	if s := c.Stats(); s.InUse != 0 || s.Objects != 0 {
		t.Errorf("%d bytes, %d objects left", s.InUse, s.Objects)
	}
	wantBytes(t, openStream(t, c, key("x", "a", 1000)), 0, 1000)
	if n := src.count(); n != 3 {
		t.Errorf("%d fetches", n)
	}
}

func TestInvalidateDuringAFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		c := newCache(t, Options{Size: 8 << 20, Source: &memSource{hook: g.hook}})
		o := c.Open(key("x", "e", 1000))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- checkRead(ctx, o.NewStream(), 0, 1000) }()
		synctest.Wait()
		cancel()
		<-done
		o.Close()
		c.Invalidate("b", "x")
		if s := c.Stats(); s.Filling == 0 {
			t.Error("memory was taken from a fetch under way")
		}
		g.pass <- nil
		synctest.Wait()
		if s := c.Stats(); s.InUse != 0 {
			t.Errorf("%d bytes left", s.InUse)
		}
		checkInvariants(t, c)
	})
}

func TestCloseNamesWhatIsHeld(t *testing.T) {
	c, err := New(Options{Size: 8 << 20, Source: &memSource{}})
	if err != nil {
		t.Fatal(err)
	}
	o := c.Open(key("x", "e", 1000))
	s := o.NewStream()
	v, err := s.View(t.Context(), 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Staging(t.Context(), 5000)
	if err != nil {
		t.Fatal(err)
	}
	err = c.Close(t.Context())
	if !errors.Is(err, ErrHeld) {
		t.Fatalf("Close with a view and a region held: %v", err)
	}
	t.Log(err)
	if string(v.Bytes()) != string(content("x", "e", 0, 10)) {
		t.Error("a view changed")
	}
	if _, err := s.View(t.Context(), 0, 10); !errors.Is(err, ErrClosed) {
		t.Errorf("View after Close: %v", err)
	}
	if _, err := c.Staging(t.Context(), 10); !errors.Is(err, ErrClosed) {
		t.Errorf("Staging after Close: %v", err)
	}
	checkInvariants(t, c)
	v.Release()
	v.Release()
	r.Release()
	r.Release()
	closeEmpty(t, c)
	closeEmpty(t, c)
	o.Close()
}

func TestCloseWaitsForFetchesAndEndsWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		deaf := make(chan struct{}) // a source that does not hear its context
		c, err := New(Options{Size: 1 << 20, Source: &memSource{hook: func(context.Context, store.ReadRequest) error {
			<-deaf
			return nil
		}}})
		if err != nil {
			t.Fatal(err)
		}
		errs := make(chan error)
		const readers = 20 // more than there is room for
		for i := range readers {
			o := c.Open(key("x", "e", 1<<30))
			s := o.NewStream()
			go func() { errs <- checkRead(t.Context(), s, int64(i)<<20+1, 1000) }()
		}
		synctest.Wait()
		if w := c.Stats().Waiting; w == 0 {
			t.Error("nobody waits for memory")
		}
		short, cancel := context.WithCancel(t.Context())
		closed := make(chan error)
		go func() { closed <- c.Close(short) }()
		synctest.Wait()
		cancel()
		if err := <-closed; !errors.Is(err, ErrHeld) || !errors.Is(err, context.Canceled) {
			t.Errorf("Close with fetches under way: %v", err)
		}
		go func() { closed <- c.Close(t.Context()) }()
		synctest.Wait()
		close(deaf)
		if err := <-closed; err != nil && !errors.Is(err, ErrHeld) {
			t.Error(err) // held is right as long as readers have not let go
		}
		refused := 0
		for range readers {
			if err := <-errs; errors.Is(err, ErrClosed) {
				refused++
			} else if err != nil {
				t.Error(err)
			}
		}
		if refused == 0 {
			t.Error("no waiter heard of the end")
		}
		closeEmpty(t, c)
	})
}

func TestBadOptions(t *testing.T) {
	src := &memSource{}
	for name, tc := range map[string]struct {
		o    Options
		want error
	}{
		"no source":  {Options{Size: 1 << 20}, ErrInvalid},
		"too small":  {Options{Size: MinSize - 1, Source: src}, ErrInvalid},
		"odd blocks": {Options{Size: 1 << 20, BlockSize: 3 << 20, Source: src}, ErrInvalid},
		"small>big":  {Options{Size: 1 << 20, BlockSize: 64 << 10, SmallBlock: 128 << 10, Source: src}, ErrInvalid},
		"memlock":    {Options{Size: 8 << 20, PD: &fakePD{}, MemlockLimit: 1 << 20, Source: src}, verbs.ErrMemlock},
	} {
		if c, err := New(tc.o); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", name, err)
			if err == nil {
				c.Close(context.Background())
			}
		}
	}
}
