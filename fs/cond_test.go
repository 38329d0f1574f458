package fs

import (
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Semantics "Writing": a server without conditional writes is looked at before
// each write that has a condition, whatever it makes.
func TestNoConditionalWrites(t *testing.T) {
	w := newWorld(t)
	w.put("old", []byte("old"))
	f := w.front(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut && (r.Header.Get("If-None-Match") != "" || r.Header.Get("If-Match") != "") {
			s3Error(rw, http.StatusNotImplemented, "NotImplemented")
			return true
		}
		return false
	})
	so := w.storeOptions()
	so.Endpoint = f.URL
	m := w.mountStore(so)
	write(t, m.path("f"), "new")
	w.wantObject("f", "new")
	write(t, m.path("old"), "newer")
	w.wantObject("old", "newer")
	if err := os.Mkdir(m.path("d"), 0o755); err != nil {
		t.Error(err)
	}
	w.wantObject("d/", "")
	if err := os.Symlink("f", m.path("l")); err != nil {
		t.Error(err)
	}
	w.wantObject("l", "f")
	if err := unix.Renameat2(unix.AT_FDCWD, m.path("f"), unix.AT_FDCWD, m.path("g"), unix.RENAME_NOREPLACE); err != nil {
		t.Error(err)
	}
	w.wantObject("g", "new")

	// What another client made since the mount looked stands in the way.
	file, err := os.OpenFile(m.path("file"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"link", "dir"} {
		if _, err := os.Lstat(m.path(name)); !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	w.put("file", []byte("theirs"))
	w.put("link", []byte("theirs"))
	w.put("dir/", nil)
	wantErrno(t, file.Close(), syscall.EEXIST)
	wantErrno(t, os.Symlink("f", m.path("link")), syscall.EEXIST)
	wantErrno(t, os.Mkdir(m.path("dir"), 0o755), syscall.EEXIST)
	w.wantObject("file", "theirs")
	w.wantObject("link", "theirs")
	if err := m.unmount(); err == nil || !strings.Contains(err.Error(), "file") {
		t.Errorf("unmount: %v", err)
	}
}

// A name that an object or a directory of the bucket is in the way of is
// refused, and not taken for a server without conditional writes.
func TestInTheWay(t *testing.T) {
	w := newWorld(t)
	m := w.mount()
	if err := os.Mkdir(m.path("d"), 0o755); err != nil {
		t.Fatal(err)
	}
	w.remove("d/")
	w.put("d", []byte("an object now"))
	wantErrno(t, os.WriteFile(m.path("d/f"), []byte("x"), 0o644), syscall.ENOTDIR)
	if m.fs.noCond.Load() {
		t.Error("the server passes for one without conditional writes")
	}
	if err := os.Remove(m.path("d/f")); err != nil {
		t.Error(err)
	}
	w.wantObject("d", "an object now")
}
