package cache

import (
	"context"
	"io"
	"testing"
	"testing/synctest"

	"s3rdmafs/store"
)

// readSeq reads [from, to) through s in pieces of n.
func readSeq(t testing.TB, s *Stream, from, to int64, n int) {
	t.Helper()
	for off := from; off < to; off += int64(n) {
		wantBytes(t, s, off, int(min(int64(n), to-off)))
	}
}

func TestSequentialWindowDoublesUpToReadAhead(t *testing.T) {
	src := &memSource{}
	c := newCache(t, Options{Size: 256 << 20, ReadAhead: 16 << 20, Source: src})
	s := openStream(t, c, key("x", "e", 1<<30))
	var windows []int64
	for off := int64(0); off < 64<<20; off += 128 << 10 {
		wantBytes(t, s, off, 128<<10)
		if w := s.runs[0].window; len(windows) == 0 || w != windows[len(windows)-1] {
			windows = append(windows, w)
		}
		if r := s.runs[0]; r.window > 0 && r.frontier < r.pos+r.window {
			t.Fatalf("at %d: read-ahead goes to %d, window %d", r.pos, r.frontier, r.window)
		}
	}
	want := []int64{0, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20}
	if len(windows) != len(want) {
		t.Fatalf("windows %v", windows)
	}
	for i := range want {
		if windows[i] != want[i] {
			t.Fatalf("windows %v", windows)
		}
	}
	checkInvariants(t, c)
	if st := c.Stats(); st.Misses > 1 {
		t.Errorf("%d misses in a sequential read", st.Misses)
	}
	src.mu.Lock()
	defer src.mu.Unlock()
	if last := src.reads[len(src.reads)-1]; len(last.Dst.Buf) != defaultBlockSize {
		t.Errorf("a fetch at full speed has %d bytes", len(last.Dst.Buf))
	}
}

func TestSequentialReadFetchesEachByteOnce(t *testing.T) {
	src := &memSource{}
	c := newCache(t, Options{Size: 64 << 20, Source: src})
	const size = 200<<20 + 4321
	s := openStream(t, c, key("x", "e", size))
	readSeq(t, s, 0, size, 100_000)
	if got := src.asked(); got != size {
		t.Errorf("asked for %d bytes of %d", got, size)
	}
	if w := c.Stats().Wasted; w != 0 {
		t.Errorf("%d bytes wasted", w)
	}
}

func TestRandomAndBackwardReadsHaveNoReadAhead(t *testing.T) {
	src := &memSource{}
	c := newCache(t, Options{Size: 64 << 20, Source: src})
	k := key("x", "e", 1<<30)
	s := openStream(t, c, k)
	for i := range int64(40) {
		wantBytes(t, s, 900<<20-i*(128<<10), 128<<10)
	}
	random := openStream(t, c, k)
	for i := range int64(40) {
		wantBytes(t, random, (i*7919%83)<<20+300<<10, 4096)
	}
	if ra := c.Stats().ReadAhead; ra != 0 {
		t.Errorf("%d bytes read ahead", ra)
	}
	if got := src.asked(); got != 80*defaultSmallBlock {
		t.Errorf("asked for %d bytes in 80 reads", got)
	}
}

func TestInterleavedRunsOfOneHandle(t *testing.T) {
	src := &memSource{}
	c := newCache(t, Options{Size: 256 << 20, Source: src})
	s := openStream(t, c, key("x", "e", 1<<30))
	const runs = 6
	for off := int64(0); off < 16<<20; off += 128 << 10 {
		for i := range int64(runs) {
			wantBytes(t, s, i*(150<<20)+off, 128<<10)
		}
	}
	if n := c.Stats().Misses; n > 3*runs {
		t.Errorf("%d misses in %d interleaved runs", n, runs)
	}
}

// The kernel has several reads of one run under way, and they arrive in any order.
func TestReorderedReadsAreOneRun(t *testing.T) {
	src := &memSource{}
	c := newCache(t, Options{Size: 256 << 20, Source: src})
	s := openStream(t, c, key("x", "e", 1<<30))
	const n = 128 << 10
	for off := int64(0); off < 32<<20; off += 4 * n {
		for _, i := range []int64{1, 0, 3, 2} {
			wantBytes(t, s, off+i*n, n)
		}
	}
	used := 0
	for i := range s.runs {
		if s.runs[i].window > 0 {
			used++
		}
	}
	if used != 1 || s.runs[0].window < 8<<20 {
		t.Errorf("%d runs, window %d", used, s.runs[0].window)
	}
}

func TestReadAheadCanBeOff(t *testing.T) {
	src := &memSource{}
	c := newCache(t, Options{Size: 64 << 20, ReadAhead: -1, Source: src})
	s := openStream(t, c, key("x", "e", 1<<30))
	readSeq(t, s, 0, 8<<20, 128<<10)
	if ra := c.Stats().ReadAhead; ra != 0 {
		t.Errorf("%d bytes read ahead", ra)
	}
}

func TestReadAheadFailureIsNobodysError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &memSource{}
		failed := false
		src.hook = func(_ context.Context, r store.ReadRequest) error {
			if r.Off == 4<<20 && !failed {
				failed = true
				return io.ErrClosedPipe
			}
			return nil
		}
		c := newCache(t, Options{Size: 64 << 20, Source: src})
		o := c.Open(key("x", "e", 32<<20))
		defer o.Close()
		s := o.NewStream()
		for off := int64(0); off < 32<<20; off += 128 << 10 {
			wantBytes(t, s, off, 128<<10)
			synctest.Wait() // let read-ahead come in before it is wanted
		}
		if !failed {
			t.Error("nothing failed")
		}
	})
}

func TestRequestOverSeveralBlocksIsFetchedInParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		src := &memSource{hook: g.hook}
		c := newCache(t, Options{Size: 64 << 20, Source: src})
		o := c.Open(key("x", "e", 1<<30))
		defer o.Close()
		done := make(chan error)
		// Across the border of two slots.
		go func() { done <- checkRead(t.Context(), o.NewStream(), 400<<20-512<<10, 1<<20) }()
		synctest.Wait()
		if n := src.count(); n != 2 {
			t.Errorf("%d fetches at once", n)
		}
		close(g.pass)
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := src.asked(); got != 1<<20 {
			t.Errorf("asked for %d bytes", got)
		}
	})
}

func TestClosedStreamGivesUpItsReadAhead(t *testing.T) {
	c := newCache(t, Options{Size: 64 << 20, Source: &memSource{}})
	o := c.Open(key("x", "e", 1<<30))
	defer o.Close()
	s := o.NewStream()
	readSeq(t, s, 0, 8<<20, 128<<10)
	st := c.Stats()
	if st.ReadAhead == 0 || st.Runs != 1 {
		t.Fatalf("no read-ahead: %+v", st)
	}
	s.Close()
	s.Close()
	c.mu.Lock()
	ahead, runs, streams := c.aheadBytes, c.runs, len(o.streams)
	c.mu.Unlock()
	if ahead != 0 || runs != 0 || streams != 0 {
		t.Errorf("%d bytes are protected for %d runs of %d streams", ahead, runs, streams)
	}
	if _, err := s.View(t.Context(), 0, 1); err == nil {
		t.Error("a closed stream reads")
	}
	checkInvariants(t, c)
}
