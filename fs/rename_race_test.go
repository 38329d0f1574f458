package fs

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// mountFront mounts by way of a server that answer sees first.
func (w *world) mountFront(answer func(http.ResponseWriter, *http.Request) bool, edit ...func(*Options)) *mounted {
	w.t.Helper()
	so := w.storeOptions()
	so.Endpoint = w.front(answer).URL
	return w.mountStore(so, edit...)
}

// copies reports whether r copies an object to a key with the given end.
func copies(r *http.Request, suffix string) bool {
	return r.Method == http.MethodPut && r.Header.Get("X-Amz-Copy-Source") != "" && strings.HasSuffix(r.URL.Path, suffix)
}

// held holds requests until it is opened, at the latest when the test ends.
type held struct {
	open    chan struct{}
	once    sync.Once
	arrived atomic.Bool
}

func hold(t *testing.T) *held {
	h := &held{open: make(chan struct{})}
	t.Cleanup(h.release)
	return h
}

func (h *held) wait() {
	h.arrived.Store(true)
	<-h.open
}

func (h *held) release() { h.once.Do(func() { close(h.open) }) }

// chance lets what must not happen before go on for a while.
func chance(done <-chan error) {
	select {
	case <-done:
	case <-time.After(time.Second):
	}
}

// Semantics "Rename": what is stored below a directory while it is renamed is
// under the new name afterwards.
func TestRenameDirWhileStoring(t *testing.T) {
	w := newWorld(t)
	w.put("src/sub/y", []byte("old"))
	w.put("src/sub/slow", []byte("s"))
	copying := hold(t)
	m := w.mountFront(func(_ http.ResponseWriter, r *http.Request) bool {
		if copies(r, "/slow") {
			copying.wait()
		}
		return false
	})
	renamed := make(chan error, 1)
	go func() { renamed <- unix.Rename(m.path("src"), m.path("dst")) }()
	eventually(t, "the copy begins, and that of y is done", func() bool {
		_, ok := w.object("dst/sub/y")
		return ok && copying.arrived.Load()
	})

	want := map[string]string{"sub/y": "acknowledged", "sub/new": "new"}
	var programs sync.WaitGroup
	for name, data := range want {
		programs.Go(func() {
			if err := os.WriteFile(m.path("src/"+name), []byte(data), 0o644); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	programs.Go(func() {
		if err := os.Mkdir(m.path("src/sub/newdir"), 0o755); err != nil {
			t.Error(err)
		}
	})
	ended := make(chan error, 1)
	go func() { programs.Wait(); ended <- nil }()
	chance(ended)
	copying.release()
	if err := <-renamed; err != nil {
		t.Fatal(err)
	}
	programs.Wait()
	for name, data := range want {
		w.wantObject("dst/"+name, data)
		wantFile(t, m.path("dst/"+name), data)
	}
	if got := w.keys(); !slices.Equal(got, []string{"dst/sub/new", "dst/sub/newdir/", "dst/sub/slow", "dst/sub/y"}) {
		t.Errorf("in the bucket: %q", got)
	}
}

// Semantics "Rename": what other clients store below a directory while it is
// copied moves as well; what they remove is not back.
func TestRenameDirWhileOthersStore(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"changed", "removed", "slow"} {
		w.put("src/"+name, []byte("old"))
	}
	copying := hold(t)
	m := w.mountFront(func(_ http.ResponseWriter, r *http.Request) bool {
		if copies(r, "/slow") {
			copying.wait()
		}
		return false
	})
	renamed := make(chan error, 1)
	go func() { renamed <- unix.Rename(m.path("src"), m.path("dst")) }()
	eventually(t, "the others are copied", func() bool {
		_, changed := w.object("dst/changed")
		_, removed := w.object("dst/removed")
		return changed && removed && copying.arrived.Load()
	})
	w.put("src/changed", []byte("new"))
	w.put("src/added", []byte("new"))
	w.remove("src/removed")
	copying.release()
	if err := <-renamed; err != nil {
		t.Fatal(err)
	}
	if got := w.keys(); !slices.Equal(got, []string{"dst/added", "dst/changed", "dst/slow"}) {
		t.Errorf("in the bucket: %q", got)
	}
	w.wantObject("dst/changed", "new")
}

// Semantics "Rename": a version that another client stores between copy and
// deletion stays.
func TestRenameLeavesOthersVersion(t *testing.T) {
	w := newWorld(t)
	w.put("f", []byte("one"))
	var once sync.Once
	m := w.mountFront(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodHead && strings.HasSuffix(r.URL.Path, "/g") {
			if _, copied := w.object("g"); copied {
				once.Do(func() { w.put("f", []byte("two")) })
			}
		}
		return false
	})
	if err := os.Rename(m.path("f"), m.path("g")); err != nil {
		t.Fatal(err)
	}
	w.wantObject("g", "one")
	w.wantObject("f", "two")
}

// Semantics "Rename": a file keeps its handles though somebody looks for it
// while its object is on the way.
func TestRenameWhileLookedFor(t *testing.T) {
	w := newWorld(t)
	w.put("f", []byte("old"))
	w.put("d/sub/f", []byte("old"))
	deleted := make(chan *held, 1)
	m := w.mountFront(func(_ http.ResponseWriter, r *http.Request) bool {
		one := r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "/f")
		many := r.Method == http.MethodPost && r.URL.Query().Has("delete")
		if one || many {
			if one {
				w.remove("f")
			} else {
				w.remove("d/sub/f")
			}
			h := hold(t)
			deleted <- h
			h.wait()
		}
		return false
	}, func(o *Options) { o.EntryTTL, o.AttrTTL, o.NegativeTTL = time.Nanosecond, time.Nanosecond, -1 })
	for _, names := range [][3]string{{"f", "g", ""}, {"d", "e", "/sub/f"}} {
		from, to, tail := names[0], names[1], names[2]
		f, err := os.OpenFile(m.path(from+tail), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		renamed := make(chan error, 1)
		go func() { renamed <- unix.Rename(m.path(from), m.path(to)) }()
		h := <-deleted
		looked := make(chan error, 1)
		go func() {
			var st unix.Stat_t
			looked <- unix.Stat(m.path(from+tail), &st)
		}()
		chance(looked)
		h.release()
		if err := <-renamed; err != nil {
			t.Errorf("rename of %s: %v", from, err)
		}
		if _, err := f.WriteAt([]byte("new"), 0); err != nil {
			t.Errorf("write: %v", err)
		}
		if err := f.Close(); err != nil {
			t.Errorf("close of %s after its rename: %v", from+tail, err)
		}
		w.wantObject(to+tail, "new")
		w.wantNoObject(from + tail)
	}
}

// Semantics "Rename": a rename in a directory and one of the directory itself
// wait for each other, in some order.
func TestRenameInRenamedDir(t *testing.T) {
	w := newWorld(t)
	w.put("src/sub/x", []byte("x"))
	w.put("src/sub/y", []byte("y"))
	storing := hold(t)
	m := w.mountFront(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut && r.Header.Get("X-Amz-Copy-Source") == "" && strings.HasSuffix(r.URL.Path, "/y") {
			storing.wait()
		}
		return false
	}, func(o *Options) { o.OpTimeout = 4 * time.Second })
	stat(t, m.path("src/sub/x"))
	f, err := os.OpenFile(m.path("src/sub/y"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("Y"), 0); err != nil {
		t.Fatal(err)
	}
	dir, file := make(chan error, 1), make(chan error, 1)
	go func() { dir <- unix.Rename(m.path("src"), m.path("dst")) }()
	eventually(t, "y is stored for the rename", storing.arrived.Load)
	go func() { file <- unix.Rename(m.path("src/sub/x"), m.path("src/sub/y")) }()
	chance(file)
	storing.release()
	if err := <-dir; err != nil {
		t.Errorf("rename of the directory: %v", err)
	}
	if err := <-file; err != nil && err != syscall.ENOENT {
		t.Errorf("rename of the file: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if keys := w.keys(); !slices.Equal(keys, []string{"dst/sub/y"}) {
		t.Errorf("in the bucket: %q", keys)
	}
}

// Semantics "Rename": a failed rename of a directory leaves an empty directory
// at the destination as it was.
func TestFailedRenameDir(t *testing.T) {
	w := newWorld(t)
	w.put("src/", nil)
	w.put("src/f", []byte("x"))
	w.put("src/denied", []byte("x"))
	w.put("dst/", nil)
	m := w.mountFront(func(rw http.ResponseWriter, r *http.Request) bool {
		if copies(r, "/denied") {
			eventually(t, "the marker is copied", func() bool { _, ok := w.object("dst/f"); return ok })
			s3Error(rw, http.StatusForbidden, "AccessDenied")
			return true
		}
		return false
	})
	stat(t, m.path("dst"))
	before := w.keys()
	wantErrno(t, unix.Rename(m.path("src"), m.path("dst")), syscall.EACCES)
	if got := w.keys(); !slices.Equal(got, before) {
		t.Errorf("in the bucket: %q, before: %q", got, before)
	}
}

// Semantics "Rename": when the source cannot be deleted, rename fails, and
// everything is whole at the destination.
func TestRenameDirHalfDeleted(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"a", "b", "c"} {
		w.put("src/"+name, []byte(name))
	}
	m := w.mountFront(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPost && r.URL.Query().Has("delete") {
			w.remove("src/a")
			s3Error(rw, http.StatusForbidden, "AccessDenied")
			return true
		}
		return false
	}, func(o *Options) { o.NegativeTTL = -1 })
	f, err := os.OpenFile(m.path("src/a"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	wantErrno(t, unix.Rename(m.path("src"), m.path("dst")), syscall.EACCES)
	for _, name := range []string{"b", "c"} {
		w.wantObject("dst/"+name, name)
		wantFile(t, m.path("dst/"+name), name)
	}
	if _, err := f.WriteAt([]byte("A"), 0); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Errorf("close of a file whose directory was half renamed: %v", err)
	}
	w.wantObject("dst/a", "A")
}

// Semantics "Rename": a copy takes as long as the server needs.
func TestRenameSlowCopy(t *testing.T) {
	w := newWorld(t)
	w.put("f", []byte("x"))
	m := w.mountFront(func(_ http.ResponseWriter, r *http.Request) bool {
		if copies(r, "/g") {
			<-time.After(3 * time.Second) // a slow server
		}
		return false
	}, func(o *Options) { o.OpTimeout = time.Second })
	if err := os.Rename(m.path("f"), m.path("g")); err != nil {
		t.Error(err)
	}
	if keys := w.keys(); !slices.Equal(keys, []string{"g"}) {
		t.Errorf("in the bucket: %q", keys)
	}
}

// Semantics "Rename": the newest version moves, though the mount has just seen
// an older one.
func TestRenameAfterOverwrite(t *testing.T) {
	w := newWorld(t)
	w.put("f", []byte("one"))
	w.put("open", []byte("one"))
	m := w.mount()
	f, err := os.Open(m.path("open"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, name := range []string{"f", "open"} {
		stat(t, m.path(name))
		w.put(name, []byte("two"))
		if err := unix.Rename(m.path(name), m.path(name+".moved")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		w.wantObject(name+".moved", "two")
		wantFile(t, m.path(name+".moved"), "two")
		w.wantNoObject(name)
	}
}

// Semantics "Writing": a file that is removed, or replaced, while its parts are
// being uploaded is closed without an error; one that could not be removed is
// stored.
func TestUnlinkWhileUploading(t *testing.T) {
	w := newWorld(t)
	w.put("other", []byte("other"))
	w.put("kept", []byte("old")) // of what the bucket has not, nothing need be deleted
	var uploading *held
	var mu sync.Mutex
	var refuse atomic.Bool
	m := w.mountFront(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut && r.URL.Query().Has("partNumber") {
			mu.Lock()
			h := uploading
			mu.Unlock()
			h.arrived.Store(true)
			select {
			case <-h.open:
			case <-r.Context().Done():
			}
		}
		if r.Method == http.MethodDelete && !r.URL.Query().Has("uploadId") && refuse.Load() {
			s3Error(rw, http.StatusForbidden, "AccessDenied")
			return true
		}
		return false
	})
	data := pattern(1, 20<<20)
	for _, c := range []struct {
		name   string
		remove func(path string) error
		want   string
	}{
		{"unlinked", os.Remove, ""},
		{"replaced", func(path string) error { return os.Rename(m.path("other"), path) }, "other"},
		{"kept", func(path string) error {
			refuse.Store(true)
			defer refuse.Store(false)
			wantErrno(t, os.Remove(path), syscall.EACCES)
			uploading.release()
			return nil
		}, data},
	} {
		mu.Lock()
		uploading = hold(t)
		mu.Unlock()
		f, err := os.Create(m.path(c.name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(data); err != nil {
			t.Fatal(err)
		}
		closed := make(chan error, 1)
		go func() { closed <- f.Close() }()
		eventually(t, "a part is on its way", uploading.arrived.Load)
		if err := c.remove(m.path(c.name)); err != nil {
			t.Error(err)
		}
		if err := <-closed; err != nil {
			t.Errorf("close of a file %s meanwhile: %v", c.name, err)
		}
		if got, _ := w.object(c.name); got != c.want {
			t.Errorf("%s is %s in the bucket", c.name, brief(got))
		}
	}
}
