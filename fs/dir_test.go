package fs

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"
)

// bigDir is more than a page of a listing, and more than a few READDIRs.
func bigDir() int {
	if os.Getenv(longTests) != "" {
		return 10_000
	}
	return 1500
}

// putMany stores n objects prefix0000 …
func (w *world) putMany(prefix string, n int) (names []string) {
	w.t.Helper()
	var g errgroup.Group
	g.SetLimit(8)
	for i := range n {
		name := fmt.Sprintf("%05d", i)
		names = append(names, name)
		g.Go(func() error {
			w.put(prefix+name, nil)
			return nil
		})
	}
	g.Wait()
	return names
}

// Semantics "Rename, remove, links, attributes": a large directory is listed
// completely, and removed while it is read.
func TestBigDirectory(t *testing.T) {
	w := newWorld(t)
	want := w.putMany("d/", bigDir())
	m := w.mount()
	if got := names(t, m.path("d")); !slices.Equal(got, want) {
		t.Errorf("%d entries listed, want %d", len(got), len(want))
	}
	f, err := os.Open(m.path("d"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	removed := 0
	for {
		part, err := f.Readdirnames(700)
		for _, name := range part {
			if err := os.Remove(m.path("d/" + name)); err != nil {
				t.Fatal(err)
			}
			removed++
		}
		if err != nil {
			break
		}
	}
	if removed != len(want) {
		t.Errorf("%d entries removed, want %d", removed, len(want))
	}
	if err := os.Remove(m.path("d")); err != nil {
		t.Error(err)
	}
	if keys := w.keys(); len(keys) != 0 {
		t.Errorf("%d keys are left", len(keys))
	}
}

// A listing shows neither what was removed here nor lacks what was made here
// before it began.
func TestListingAndChanges(t *testing.T) {
	w := newWorld(t)
	w.putMany("d/", 30)
	m := w.mount()
	f, err := os.Open(m.path("d"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	first, err := f.Readdirnames(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(m.path("d/00029")); err != nil {
		t.Fatal(err)
	}
	write(t, m.path("d/zz"), "x")
	if _, err := f.Seek(0, 0); err != nil {
		t.Fatal(err)
	}
	again, err := f.Readdirnames(-1)
	if err != nil {
		t.Fatal(err)
	}
	if first[0] != "00000" || len(again) != 30 || slices.Contains(again, "00029") || !slices.Contains(again, "zz") {
		t.Errorf("listed %q, then %q", first, again)
	}
}

// Names come and go from many sides at once; in the end the mount, a fresh
// mount and the bucket agree.
func TestConcurrentNames(t *testing.T) {
	w := newWorld(t)
	m := w.mount()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			dir := m.path(fmt.Sprintf("d%d", i%3))
			for j := range 15 {
				os.Mkdir(dir, 0o755)
				name := fmt.Sprintf("%s/f%d-%d", dir, i, j)
				if err := os.WriteFile(name, []byte(name), 0o644); err != nil {
					t.Error(err)
					return
				}
				switch j % 3 {
				case 0:
					if err := os.Rename(name, name+"-moved"); err != nil {
						t.Error(err)
					}
				case 1:
					if err := os.Remove(name); err != nil {
						t.Error(err)
					}
				}
				if _, err := os.ReadDir(dir); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	fresh := w.mount()
	total := 0
	for i := range 3 {
		dir := fmt.Sprintf("d%d", i)
		here, there := names(t, m.path(dir)), names(t, fresh.path(dir))
		if !slices.Equal(here, there) {
			t.Errorf("%s: here %q, there %q", dir, here, there)
		}
		total += len(here)
	}
	if total != 8*10 {
		t.Errorf("%d files, want %d", total, 8*10)
	}
}
