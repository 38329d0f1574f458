package cache

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func TestStagingIsMemoryOfItsOwn(t *testing.T) {
	pd := &fakePD{}
	c := newCache(t, Options{Size: 8 << 20, PD: pd, Source: &memSource{}})
	var regions []*Region
	for i := range 4 {
		r, err := c.Staging(t.Context(), c.MaxStaging())
		if err != nil {
			t.Fatal(err)
		}
		fill(r.Bytes(), "r", string(rune('0'+i)), 0)
		seg := r.Segment()
		if seg.MR == nil || &seg.MR.Bytes()[seg.Off] != &r.Bytes()[0] || len(r.Bytes()) != c.MaxStaging() {
			t.Error("segment is not where its MR says")
		}
		regions = append(regions, r)
	}
	wantBytes(t, openStream(t, c, key("x", "e", 8<<20)), 0, 8<<20)
	for i, r := range regions {
		if string(r.Bytes()) != string(content("r", string(rune('0'+i)), 0, c.MaxStaging())) {
			t.Errorf("region %d was overwritten", i)
		}
		r.Release()
	}
	checkInvariants(t, c)
}

func TestStagingSizes(t *testing.T) {
	c := newCache(t, Options{Size: 8 << 20, Source: &memSource{}})
	for _, n := range []int{0, -1, c.MaxStaging() + 1} {
		if _, err := c.Staging(t.Context(), n); !errors.Is(err, ErrInvalid) {
			t.Errorf("%d bytes: %v", n, err)
		}
		if c.TryStaging(n) != nil {
			t.Errorf("TryStaging gave %d bytes", n)
		}
	}
	for size, want := range map[int64]int{1 << 20: 128 << 10, 64 << 20: 8 << 20, 2 << 30: 64 << 20} {
		c := newCache(t, Options{Size: size, Source: &memSource{}})
		if got := c.MaxStaging(); got != want {
			t.Errorf("budget %d: MaxStaging %d, want %d", size, got, want)
		}
	}
}

func TestWritersCannotStarveReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, Options{Size: 8 << 20, Source: &memSource{}})
		var held []*Region
		for {
			r := c.TryStaging(100 << 10)
			if r == nil {
				break
			}
			held = append(held, r)
		}
		if n := c.Stats().Staging; n < 3<<20 || n > 4<<20 {
			t.Errorf("writers got %d bytes", n)
		}
		// One more waits, and readers still get on.
		ctx, cancel := context.WithCancel(t.Context())
		waiting := make(chan error)
		go func() {
			_, err := c.Staging(ctx, 1<<20)
			waiting <- err
		}()
		synctest.Wait()
		o := c.Open(key("x", "e", 64<<20))
		s := o.NewStream()
		readSeq(t, s, 0, 64<<20, 128<<10)
		checkInvariants(t, c)
		o.Close()
		cancel()
		if err := <-waiting; !errors.Is(err, context.Canceled) {
			t.Errorf("waiting writer: %v", err)
		}
		for _, r := range held {
			r.Release()
		}
	})
}

func TestReadersCannotStarveWriters(t *testing.T) {
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
		// A writer waits; more readers wait behind.
		staged := make(chan *Region)
		go func() {
			r, err := c.Staging(t.Context(), c.MaxStaging())
			if err != nil {
				t.Error(err)
			}
			staged <- r
		}()
		synctest.Wait()
		if c.TryStaging(1) != nil {
			t.Error("TryStaging overtook a waiting writer")
		}
		read := make(chan error)
		const readers = 10
		for i := range readers {
			go func() { read <- checkRead(t.Context(), o.NewStream(), int64(100+i)<<20, 10) }()
		}
		synctest.Wait()
		for _, v := range views {
			v.Release()
		}
		r := <-staged
		for range readers {
			if err := <-read; err != nil {
				t.Error(err)
			}
		}
		r.Release()
		checkInvariants(t, c)
	})
}

// A writer that needs a large piece is not passed over by readers that are
// content with its parts.
func TestReadersDoNotTakeThePartsOfWhatAWriterWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, Options{Size: 1 << 20, SmallBlock: 64 << 10, Source: &memSource{}})
		s := openStream(t, c, key("x", "e", 1<<30))
		views := map[int][]*View{} // by slab
		for i := range int64(16) {
			v, err := s.View(t.Context(), i<<20+5, 1)
			if err != nil {
				t.Fatal(err)
			}
			views[v.block.slab.index] = append(views[v.block.slab.index], v)
		}
		staged, read := make(chan *Region), make(chan error)
		go func() {
			r, err := c.Staging(t.Context(), 128<<10)
			if err != nil {
				t.Error(err)
			}
			staged <- r
		}()
		synctest.Wait()
		go func() { read <- checkRead(t.Context(), s, 100<<20, 10) }()
		synctest.Wait()
		views[7][0].Release()
		synctest.Wait()
		if w := c.Stats().Waiting; w != 2 {
			t.Errorf("%d wait after half a slab came free", w)
		}
		views[7][1].Release()
		r := <-staged
		views[0][0].Release()
		if err := <-read; err != nil {
			t.Error(err)
		}
		r.Release()
		for _, vs := range views {
			for _, v := range vs {
				v.Release()
			}
		}
	})
}

func TestCancelledWaiterMakesWayForTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, Options{Size: 1 << 20, Source: &memSource{}})
		var held []*Region
		for {
			r := c.TryStaging(unitSize)
			if r == nil {
				break
			}
			held = append(held, r)
		}
		held[0].Release()
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan error)
		go func() {
			_, err := c.Staging(ctx, 128<<10)
			first <- err
		}()
		synctest.Wait()
		second := make(chan *Region)
		go func() {
			r, err := c.Staging(t.Context(), unitSize)
			if err != nil {
				t.Error(err)
			}
			second <- r
		}()
		synctest.Wait()
		if w := c.Stats().Waiting; w != 2 {
			t.Errorf("%d wait", w)
		}
		cancel()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		(<-second).Release()
		for _, r := range held[1:] {
			r.Release()
		}
	})
}
