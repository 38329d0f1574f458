package cache

import (
	"sync/atomic"
	"testing"
)

// pdOf tells which of the PDs registered what s is in.
func pdOf(t *testing.T, s *Region, pds ...*fakePD) int {
	t.Helper()
	for i, p := range pds {
		if m, ok := s.Segment().MR.(*fakeMR); ok && m.pd == p {
			return i
		}
	}
	t.Fatal("not registered")
	return -1
}

func TestRailsAreUsedInTurn(t *testing.T) {
	a, b := &fakePD{}, &fakePD{}
	var up atomic.Bool
	up.Store(true)
	c := newCache(t, Options{Size: 8 << 20, Source: &memSource{}, Rails: []Rail{
		{PD: a, NUMANode: 0},
		{PD: b, NUMANode: -1, Usable: up.Load},
	}})
	take := func(n int) (regions []*Region) {
		t.Helper()
		for range n {
			r := c.TryStaging(64 << 10)
			if r == nil {
				t.Fatal("no room")
			}
			t.Cleanup(r.Release)
			regions = append(regions, r)
		}
		return regions
	}
	count := func(regions []*Region) (n [2]int) {
		for _, r := range regions {
			n[pdOf(t, r, a, b)]++
		}
		return n
	}
	if n := count(take(8)); n != [2]int{4, 4} {
		t.Errorf("regions by rail: %v, want half each", n)
	}
	up.Store(false)
	if n := count(take(8)); n != [2]int{8, 0} {
		t.Errorf("regions by rail while the second is down: %v", n)
	}
	// Memory is not wasted for it: what only the other rail has is used, too.
	half := c.opt.Size / 2 / (64 << 10)
	if n := count(take(int(half) - 16)); n[1] == 0 || n[0]+n[1] != int(half)-16 {
		t.Errorf("regions by rail when all staging memory is taken: %v", n)
	}
	up.Store(true)
}

// Each slab is one MR, so that slabs grow when the device has few.
func TestFewMRs(t *testing.T) {
	for _, most := range []int{1, 2, 3, 7, 8, 1000} {
		pd := &fakePD{}
		c := newCache(t, Options{Size: 8<<20 + 5*unitSize, Source: &memSource{}, PD: pd, MaxMRs: most})
		if n := len(c.arena.slabs); n > most || n < min(most, 8)/2 {
			t.Errorf("%d MRs: %d slabs", most, n)
		}
		wantBytes(t, openStream(t, c, key("x", "e", 6<<20)), 0, 6<<20)
		if n, _ := pd.registered(); n > most {
			t.Errorf("%d MRs: %d registered", most, n)
		}
	}
}
