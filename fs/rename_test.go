package fs

import (
	"fmt"
	"io"
	"os"
	"slices"
	"sort"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Semantics "Rename": of a file, over nothing and over another.
func TestRenameFile(t *testing.T) {
	w := newWorld(t)
	w.put("a", []byte("a"), "colour", "red")
	w.put("d/b", []byte("b"))
	m := w.mount()
	if err := os.Rename(m.path("a"), m.path("d/a")); err != nil {
		t.Fatal(err)
	}
	w.wantNoObject("a")
	w.wantObject("d/a", "a")
	if got := w.meta("d/a")["colour"]; got != "red" {
		t.Errorf("metadata after the rename: %v", w.meta("d/a"))
	}
	if err := os.Rename(m.path("d/a"), m.path("d/b")); err != nil {
		t.Fatal(err)
	}
	if got := w.keys(); !slices.Equal(got, []string{"d/b"}) {
		t.Errorf("in the bucket: %q", got)
	}
	wantFile(t, m.path("d/b"), "a")
	if _, err := os.Lstat(m.path("d/a")); !os.IsNotExist(err) {
		t.Error(err)
	}
	if err := os.Mkdir(m.path("empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	wantErrno(t, os.Rename(m.path("d/b"), m.path("empty")), syscall.EEXIST) // package os asks first
	wantErrno(t, unix.Rename(m.path("d/b"), m.path("empty")), syscall.EISDIR)
	wantErrno(t, unix.Rename(m.path("empty"), m.path("d/b")), syscall.ENOTDIR)
}

// Semantics "Rename": the time of a file does not change with its name.
func TestRenameKeepsTime(t *testing.T) {
	w := newWorld(t)
	w.put("f", []byte("x"))
	w.put("d/f", []byte("x"), metaMTime, "12345.5")
	m := w.mount()
	before := stat(t, m.path("f")).Mtim.Sec
	eventually(t, "the next second", func() bool { return time.Now().Unix() > before+1 })
	if err := os.Rename(m.path("f"), m.path("g")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(m.path("d"), m.path("e")); err != nil {
		t.Fatal(err)
	}
	for _, m := range []*mounted{m, w.mount()} {
		if got := stat(t, m.path("g")).Mtim.Sec; got != before {
			t.Errorf("mtime %d becomes %d", before, got)
		}
		if got := stat(t, m.path("e/f")).Mtim; got.Sec != 12345 || got.Nsec != 5e8 {
			t.Errorf("mtime is %v", got)
		}
	}
}

// Semantics "Rename": RENAME_NOREPLACE, no exchange.
func TestRenameFlags(t *testing.T) {
	w := newWorld(t)
	w.put("a", []byte("a"))
	w.put("b", []byte("b"))
	m := w.mount()
	rename := func(from, to string, flags uint) error {
		return unix.Renameat2(unix.AT_FDCWD, m.path(from), unix.AT_FDCWD, m.path(to), flags)
	}
	wantErrno(t, rename("a", "b", unix.RENAME_NOREPLACE), syscall.EEXIST)
	wantErrno(t, rename("a", "b", unix.RENAME_EXCHANGE), syscall.EINVAL)
	w.wantObject("b", "b")
	if err := rename("a", "c", unix.RENAME_NOREPLACE); err != nil {
		t.Error(err)
	}
	w.wantObject("c", "a")
}

// Semantics "Rename": also while open and dirty, stored before or not.
func TestRenameWhileWriting(t *testing.T) {
	w := newWorld(t)
	w.put("old", []byte("0000000000"))
	w.put("target", []byte("target"))
	m := w.mount()
	for from, to := range map[string]string{"new": "target", "old": "moved"} {
		f, err := os.OpenFile(m.path(from), os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte("before"), 0); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(m.path(from), m.path(to)); err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte(" after"), 6); err != nil {
			t.Fatal(err)
		}
		wantFile(t, m.path(to), "before after")
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		w.wantObject(to, "before after")
		w.wantNoObject(from)
	}
	if got := w.keys(); !slices.Equal(got, []string{"moved", "target"}) {
		t.Errorf("in the bucket: %q", got)
	}
}

// A reader keeps its bytes over a rename of its file and of its directory.
func TestRenameWhileReading(t *testing.T) {
	w := newWorld(t)
	data := pattern(8, 20<<20)
	w.put("d/f", []byte(data))
	m := w.mount()
	f, err := os.Open(m.path("d/f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.ReadFull(f, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(m.path("d/f"), m.path("d/g")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(f, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(m.path("d"), m.path("e")); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(f)
	if err != nil || string(rest) != data[2<<20:] {
		t.Errorf("rest of the file: %d bytes, %v", len(rest), err)
	}
}

// Semantics "Rename": a directory: copy all, verify, delete all; with files
// that are not stored yet.
func TestRenameDir(t *testing.T) {
	w := newWorld(t)
	var want []string
	for i := range 50 {
		w.put(fmt.Sprintf("src/sub%d/f%02d", i%3, i), fmt.Append(nil, i))
		want = append(want, fmt.Sprintf("dst/sub%d/f%02d", i%3, i))
	}
	w.put("src/empty/", nil)
	w.put("srcother", []byte("stays"))
	w.put("full/x", nil)
	m := w.mount()
	dirty, err := os.Create(m.path("src/sub0/dirty"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dirty.WriteString("dirty"); err != nil {
		t.Fatal(err)
	}
	wantErrno(t, unix.Rename(m.path("src"), m.path("full")), syscall.ENOTEMPTY)
	wantErrno(t, unix.Rename(m.path("src"), m.path("src/sub1/src")), syscall.EINVAL)
	if err := os.Mkdir(m.path("dst"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Rename(m.path("src"), m.path("dst")); err != nil {
		t.Fatal(err)
	}
	if err := dirty.Close(); err != nil {
		t.Fatal(err)
	}
	want = append(want, "dst/", "dst/empty/", "dst/sub0/dirty", "full/x", "srcother")
	sort.Strings(want)
	if got := w.keys(); !slices.Equal(got, want) {
		t.Errorf("in the bucket: %q", got)
	}
	wantFile(t, m.path("dst/sub1/f04"), "4")
	wantFile(t, m.path("dst/sub0/dirty"), "dirty")
	if _, err := os.Lstat(m.path("src")); !os.IsNotExist(err) {
		t.Error(err)
	}
	if got := names(t, m.path("dst")); !slices.Equal(got, []string{"empty", "sub0", "sub1", "sub2"}) {
		t.Errorf("listed %q", got)
	}
	if err := os.Rename(m.path("dst"), m.path("src")); err != nil {
		t.Fatal(err)
	}
	wantFile(t, m.path("src/sub0/dirty"), "dirty")
}

// What an unstored file was renamed over goes with it, wherever it goes.
func TestRenameOverThenAway(t *testing.T) {
	w := newWorld(t)
	m := w.mount()
	for i, away := range []func(string) error{
		os.Remove,
		func(path string) error { return os.Rename(path, m.path("elsewhere")) },
	} {
		w.put("target", []byte("old"))
		f, err := os.Create(m.path("new"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString("data"); err != nil {
			t.Fatal(err)
		}
		eventuallyOpen(t, m.path("target"))
		if err := os.Rename(m.path("new"), m.path("target")); err != nil {
			t.Fatal(err)
		}
		if err := away(m.path("target")); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		w.wantNoObject("target")
		if i == 1 {
			w.wantObject("elsewhere", "data")
		}
	}
}
