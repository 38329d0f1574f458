package cache

import (
	"testing"

	"pgregory.net/rapid"
)

// Runs that are handed out never overlap, keep their alignment, and all comes
// together again.
func TestBuddyModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		units := rapid.IntRange(1, 300).Draw(t, "units")
		b := newBuddy(units)
		owned := make([]bool, units)
		type run struct{ unit, n int }
		var runs []run
		give := func(i int) {
			r := runs[i]
			b.release(r.unit, r.n)
			clear(owned[r.unit : r.unit+r.n])
			runs = append(runs[:i], runs[i+1:]...)
		}
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				n := rapid.IntRange(1, units).Draw(t, "n")
				unit, ok := b.alloc(n)
				span := 1 << orderOf(n)
				if !ok {
					for from := 0; from+span <= units; from += span {
						free := true
						for _, o := range owned[from : from+span] {
							free = free && !o
						}
						if free {
							t.Fatalf("%d units did not fit, but %d at %d are free", n, span, from)
						}
					}
					return
				}
				if unit%span != 0 {
					t.Fatalf("%d units at %d", n, unit)
				}
				for u := unit; u < unit+n; u++ {
					if owned[u] {
						t.Fatalf("unit %d was given twice", u)
					}
					owned[u] = true
				}
				runs = append(runs, run{unit, n})
			},
			"release": func(t *rapid.T) {
				if len(runs) == 0 {
					t.Skip("nothing to release")
				}
				give(rapid.IntRange(0, len(runs)-1).Draw(t, "i"))
			},
		})
		for len(runs) > 0 {
			give(0)
		}
		fresh := newBuddy(units)
		if b.has != fresh.has {
			t.Fatalf("free orders %b, at first %b", b.has, fresh.has)
		}
	})
}
