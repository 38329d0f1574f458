package cache

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"s3rdmafs/store"
)

func TestManyStreamsInASmallBudget(t *testing.T) {
	const streams, size = 500, 300<<10 + 77
	c := newCache(t, Options{Size: 2 << 20, Source: &memSource{}})
	var g errgroup.Group
	for i := range streams {
		k := key(fmt.Sprint("x", i%250), "e", size)
		g.Go(func() error {
			o := c.Open(k)
			defer o.Close()
			s := o.NewStream()
			for off := int64(0); off < size; off += 100 << 10 {
				if err := checkRead(t.Context(), s, off, int(min(100<<10, size-off))); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	checkInvariants(t, c)
}

// With read-ahead of both larger than the budget, neither makes the other
// fetch again and again.
func TestTwoBigReadersDoNotEvictEachOthersReadAhead(t *testing.T) {
	src := &memSource{}
	c := newCache(t, Options{Size: 16 << 20, Source: src})
	const size = 128 << 20
	a, b := openStream(t, c, key("a", "e", size)), openStream(t, c, key("b", "e", size))
	for off := int64(0); off < size; off += 128 << 10 {
		wantBytes(t, a, off, 128<<10)
		wantBytes(t, b, off, 128<<10)
	}
	if got := src.asked(); got > 2*size+size/50 {
		t.Errorf("asked for %d bytes to read %d", got, 2*size)
	}
}

func TestReaderWaitsForRoomAndGetsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, Options{Size: 1 << 20, Source: &memSource{}})
		o := c.Open(key("x", "e", 1<<30))
		defer o.Close()
		var views []*View
		for i := range int64(8) {
			v, err := o.NewStream().View(t.Context(), i<<20+5, 1)
			if err != nil {
				t.Fatal(err)
			}
			views = append(views, v)
		}
		if f := c.Stats().Free; f != 0 {
			t.Fatalf("%d bytes free", f)
		}
		errs := make([]chan error, 4)
		cancelled, cancel := context.WithCancel(t.Context())
		for i := range errs {
			ctx := t.Context()
			if i == 1 {
				ctx = cancelled
			}
			errs[i] = make(chan error, 1)
			go func() { errs[i] <- checkRead(ctx, o.NewStream(), int64(100+i)<<20, 1000) }()
			synctest.Wait()
		}
		if w := c.Stats().Waiting; w != 4 {
			t.Fatalf("%d wait", w)
		}
		checkInvariants(t, c)
		cancel()
		if err := <-errs[1]; !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled wait: %v", err)
		}
		views[0].Release()
		synctest.Wait()
		// One block serves all in turn, as each gives it back.
		for _, i := range []int{0, 2, 3} {
			if err := <-errs[i]; err != nil {
				t.Error(err)
			}
		}
		for _, v := range views[1:] {
			if string(v.Bytes()) != string(content("x", "e", v.block.start+5, 1)) {
				t.Error("a view changed")
			}
			v.Release()
		}
		checkInvariants(t, c)
	})
}

func TestWaitersAreServedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, Options{Size: 1 << 20, Source: &memSource{}})
		o := c.Open(key("x", "e", 1<<30))
		defer o.Close()
		var views []*View
		for i := range int64(8) {
			v, err := o.NewStream().View(t.Context(), i<<20+5, 1)
			if err != nil {
				t.Fatal(err)
			}
			views = append(views, v)
		}
		type got struct {
			i int
			v *View
		}
		ch := make(chan got)
		const waiting = 5
		for i := range waiting {
			go func() {
				v, err := o.NewStream().View(t.Context(), int64(100+i)<<20, 1)
				if err != nil {
					t.Error(err)
				}
				ch <- got{i, v}
			}()
			synctest.Wait()
		}
		for i := range waiting {
			views[i].Release()
			g := <-ch
			if g.i != i {
				t.Errorf("reader %d was served as number %d", g.i, i)
			}
			views[i] = g.v
		}
		for _, v := range views {
			v.Release()
		}
	})
}

// Room for a large block is not made of another stream's unread read-ahead, as long
// as a smaller block will do.
func TestUnreadReadAheadIsNotEvictedWithItsNeighbours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, Options{Size: 8 << 20, ReadAhead: 256 << 10, Source: &memSource{}})
		s := openStream(t, c, key("sequential", "e", 1<<30))
		// One block of read-ahead in each slab, among blocks read at random.
		random := openStream(t, c, key("random", "e", 1<<40))
		var ahead []*block
		for i := int64(0); c.Stats().Free > 0; i++ {
			wantBytes(t, random, i<<30+5, 10)
			if i%6 == 0 && len(ahead) < 8 {
				c.mu.Lock()
				b := c.prefetch(s.obj, i<<20, i<<20+128<<10)
				c.mu.Unlock()
				ahead = append(ahead, b)
			}
			synctest.Wait()
		}
		wantBytes(t, openStream(t, c, key("large", "e", 1<<30)), 500<<20, 1<<20)
		for i, b := range ahead {
			if b.state != stateResident || !b.ahead {
				t.Errorf("read-ahead %d is %v", i, b.state)
			}
		}
		checkInvariants(t, c)
	})
}

func TestSmallBlocksGiveWayToALargeOne(t *testing.T) {
	c := newCache(t, Options{Size: 64 << 20, Source: &memSource{}})
	for i := range 64 << 20 / unitSize {
		o := c.Open(key(fmt.Sprint("small", i), "e", 4000))
		wantBytes(t, o.NewStream(), 0, 4000)
		o.Close()
	}
	if f := c.Stats().Free; f != 0 {
		t.Fatalf("%d bytes free", f)
	}
	s := openStream(t, c, key("big", "e", 1<<30))
	wantBytes(t, s, 500<<20, 4<<20)
	st := c.Stats()
	if st.Misses != int64(64<<20/unitSize+1) {
		t.Errorf("a block of 4 MiB came in pieces: %d misses", st.Misses)
	}
	if st.Evictions != 4<<20/unitSize {
		t.Errorf("%d evictions for 4 MiB", st.Evictions)
	}
	checkInvariants(t, c)
}

func TestLeastRecentlyUsedIsEvicted(t *testing.T) {
	src := &memSource{}
	c := newCache(t, Options{Size: 1 << 20, Source: src})
	s := openStream(t, c, key("x", "e", 1<<30))
	at := func(i int64) { wantBytes(t, s, i*(10<<20)+5, 10) }
	for i := range int64(8) {
		at(i)
	}
	at(0)
	at(20) // evicts 1
	n := src.count()
	at(0)
	if src.count() != n {
		t.Error("a block used a moment ago was evicted")
	}
	at(1)
	if src.count() == n {
		t.Error("the oldest block was not evicted")
	}
}

// A scan of a file much larger than the budget leaves blocks that are read
// again and again alone.
func TestScanDoesNotEvictWhatIsUsed(t *testing.T) {
	src := &memSource{}
	c := newCache(t, Options{Size: 32 << 20, Source: src})
	hot := openStream(t, c, key("hot", "e", 1<<30))
	scan := openStream(t, c, key("scan", "e", 256<<20))
	for off := int64(0); off < 256<<20; off += 128 << 10 {
		wantBytes(t, scan, off, 128<<10)
		wantBytes(t, hot, (off>>17)%16*(10<<20)+5, 10)
	}
	fetches := 0
	src.mu.Lock()
	defer src.mu.Unlock()
	for _, r := range src.reads {
		if r.Key == "hot" {
			fetches++
		}
	}
	if fetches != 16 {
		t.Errorf("16 hot blocks were fetched %d times", fetches)
	}
}

// A reader that stopped keeps its read-ahead only until the budget went
// round once.
func TestReadAheadOfAStoppedReaderGoesInTheEnd(t *testing.T) {
	c := newCache(t, Options{Size: 16 << 20, Source: &memSource{}})
	stopped := openStream(t, c, key("stopped", "e", 1<<30))
	readSeq(t, stopped, 0, 4<<20, 128<<10)
	if c.Stats().Runs != 1 {
		t.Fatal("no run")
	}
	other := openStream(t, c, key("other", "e", 1<<30))
	readSeq(t, other, 0, 64<<20, 128<<10)
	for at := stopped.runs[0].pos &^ (1<<20 - 1); at < stopped.runs[0].frontier; at += 128 << 10 {
		if b := stopped.obj.at(at); b != nil && b.ahead {
			t.Fatalf("read-ahead at %d is still protected", at)
		}
	}
	checkInvariants(t, c)
}

func TestMetadataGoesWithTheBlocks(t *testing.T) {
	c := newCache(t, Options{Size: 1 << 20, Source: &memSource{}})
	for i := range 1000 {
		o := c.Open(key(fmt.Sprint("x", i), "e", 4000))
		wantBytes(t, o.NewStream(), 0, 4000)
		o.Close()
		c.Open(key(fmt.Sprint("unread", i), "e", 4000)).Close()
	}
	if n := c.Stats().Objects; n > 1<<20/unitSize {
		t.Errorf("%d objects are kept for a budget of %d regions", n, 1<<20/unitSize)
	}
}

// All readers at once, random, cancelled now and then, from a source that
// takes its time and fails: in the end no reference is left.
func TestStress(t *testing.T) {
	boom := errors.New("boom")
	synctest.Test(t, func(t *testing.T) {
		src := &memSource{hook: func(ctx context.Context, _ store.ReadRequest) error {
			if rand.IntN(20) == 0 {
				return boom
			}
			select {
			case <-time.After(time.Duration(rand.IntN(2000)) * time.Microsecond):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}}
		c := newCache(t, Options{Size: 4 << 20, Source: src})
		var g errgroup.Group
		for i := range 64 {
			g.Go(func() error {
				for range 20 {
					size := int64(1 + rand.IntN(8<<20))
					o := c.Open(key(fmt.Sprint("x", rand.IntN(10)), "e", size))
					s := o.NewStream()
					for range 5 {
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(20))*time.Millisecond)
						off := rand.Int64N(size)
						err := checkRead(ctx, s, off, int(min(size-off, 1+rand.Int64N(300<<10))))
						cancel()
						if err != nil && !errors.Is(err, boom) && !errors.Is(err, context.DeadlineExceeded) {
							return err
						}
					}
					if i%4 == 0 {
						ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
						r, err := c.Staging(ctx, 1+rand.IntN(c.MaxStaging()))
						cancel()
						if err == nil {
							r.Release()
						} else if !errors.Is(err, context.DeadlineExceeded) {
							return err
						}
					}
					if i%8 == 0 {
						c.Invalidate("b", o.key.Key)
					}
					o.Close()
					if err := c.invariants(); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		if s := c.Stats(); s.Draining != 0 || s.Staging != 0 || s.Waiting != 0 {
			t.Errorf("something is left: %+v", s)
		}
	})
}
