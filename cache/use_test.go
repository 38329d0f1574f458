package cache

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"s3rdmafs/verbs"
)

// Bytes on their way out lie where no peer has a right to write, whatever rkeys it
// was told for reads.
func TestPeersHaveNoRightToStaging(t *testing.T) {
	pd := &fakePD{}
	src := &mrSource{pd: pd} // checks the rights of reads
	c := newCache(t, Options{Size: 8 << 20, PD: pd, Source: src})
	s := openStream(t, c, key("x", "e", 1<<40))
	check := func(r *Region) {
		t.Helper()
		if err := pd.check(r.Segment()); err != nil {
			t.Fatal(err)
		}
		pd.mu.Lock()
		defer pd.mu.Unlock()
		for _, mr := range pd.live {
			over := &mr.buf[0] == &r.Segment().MR.Bytes()[0]
			if over && mr.access&(verbs.AccessRemoteWrite|verbs.AccessRemoteRead) != 0 {
				t.Error("an MR with remote rights covers staging")
			}
		}
	}
	at := int64(0)
	readAll := func() { // more than there is
		for range 128 {
			wantBytes(t, s, at<<30+5, 10)
			at++
		}
	}
	for range 3 {
		readAll()
		var held []*Region
		for {
			r := c.TryStaging(100 << 10)
			if r == nil {
				break
			}
			check(r)
			held = append(held, r)
			wantBytes(t, s, at<<30+5, 10)
			at++
		}
		if n := c.Stats().Staging; n < 3<<20 {
			t.Errorf("writers got %d bytes", n)
		}
		readAll()
		checkInvariants(t, c)
		for _, r := range held {
			check(r)
			r.Release()
		}
	}
}

// Readers have the memory of writers that are gone, but not at once: to and fro
// would cost a registration each time.
func TestSlabsChangeUseSeldom(t *testing.T) {
	pd := &fakePD{}
	src := &mrSource{pd: pd}
	c := newCache(t, Options{Size: 8 << 20, PD: pd, Source: src})
	s := openStream(t, c, key("x", "e", 1<<40))
	at := int64(0)
	read := func() { wantBytes(t, s, at<<30+5, 10); at++ } // 128 KiB
	for c.Stats().Free > 0 {
		read()
	}
	made := pd.next
	for range 100 {
		r, err := c.Staging(t.Context(), 512<<10)
		if err != nil {
			t.Fatal(err)
		}
		read()
		r.Release()
		read()
	}
	if n := pd.next - made; n > 10 {
		t.Errorf("100 uses of staging memory made %d MRs", n)
	}
	for range 200 {
		read()
	}
	if free := c.Stats().Free; free != 0 {
		t.Errorf("%d bytes stay unused for want of writers", free)
	}
	checkInvariants(t, c)
}

// A writer gets a slab of readers' when all in it can go, and readers go on
// meanwhile.
func TestWriterWaitsForAWholeSlab(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pd := &fakePD{}
		c := newCache(t, Options{Size: 1 << 20, SmallBlock: 64 << 10, PD: pd, Source: &mrSource{pd: pd}})
		s := openStream(t, c, key("x", "e", 1<<40))
		var views []*View
		for i := int64(0); c.Stats().Free > 0; i++ {
			v, err := s.View(t.Context(), i<<30+5, 1)
			if err != nil {
				t.Fatal(err)
			}
			views = append(views, v)
		}
		staged := make(chan error, 1)
		go func() {
			r, err := c.Staging(t.Context(), 1)
			if err == nil {
				r.Release()
			}
			staged <- err
		}()
		synctest.Wait()
		last := len(views) - 1
		views[last].Release()
		synctest.Wait()
		if c.Stats().Waiting != 1 {
			t.Error("staging in a slab that a peer can write to")
		}
		views[0].Release()
		wantBytes(t, s, 1<<39, 10)
		views[last-1].Release()
		if err := <-staged; err != nil {
			t.Error(err)
		}
		for _, v := range views[1 : last-1] {
			v.Release()
		}
		checkInvariants(t, c)
	})
}

// stubbornPD does not give up the MRs it made.
type stubbornPD struct{ *fakePD }

type stubbornMR struct{ *fakeMR }

var errStubborn = errors.New("no")

func (p stubbornPD) RegMR(mem *verbs.Memory, off, length int, access verbs.Access) (verbs.MR, error) {
	m, err := p.fakePD.RegMR(mem, off, length, access)
	if err != nil {
		return nil, err
	}
	return stubbornMR{m.(*fakeMR)}, nil
}

func (stubbornMR) Close() error { return errStubborn }

// An MR that cannot be closed serves a use with fewer rights, and for one with
// more the memory counts as unregistered.
func TestMRThatCannotBeClosed(t *testing.T) {
	pd := stubbornPD{&fakePD{}}
	src := &memSource{}
	c, err := New(Options{Size: 1 << 20, PD: pd, Source: src})
	if err != nil {
		t.Fatal(err)
	}
	first, err := c.Staging(t.Context(), c.MaxStaging())
	if err != nil {
		t.Fatal(err)
	}
	if first.Segment().MR == nil {
		t.Error("staging is not registered at first")
	}
	first.Release()
	o := c.Open(key("x", "e", 1<<40))
	s := o.NewStream()
	for i := range int64(100) {
		wantBytes(t, s, i<<30+5, 10)
	}
	unregistered := 0
	for _, r := range src.reads {
		if r.Dst.MR == nil {
			unregistered++
		} else if r.Dst.MR.(stubbornMR).access&verbs.AccessRemoteWrite == 0 {
			t.Fatal("a peer is to write where it cannot")
		}
	}
	if unregistered == 0 {
		t.Error("the test needs a slab that changed its use")
	}
	s.Close()
	o.Close()
	if err := c.Close(context.Background()); !errors.Is(err, errStubborn) {
		t.Errorf("Close: %v", err)
	}
	c.arena.mem.Close()
}
