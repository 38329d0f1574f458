package fs

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
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

// Semantics "Reading": of opens at the same time after an overwrite of equal
// size, none is served from pages of the old version.
func TestConcurrentOpens(t *testing.T) {
	w := newWorld(t)
	m := w.mount()
	for i := range 60 {
		data := pattern(i, 300_000)
		w.put("f", []byte(data))
		var readers sync.WaitGroup
		var stale atomic.Int32
		for range 12 {
			readers.Go(func() {
				if b, err := os.ReadFile(m.path("f")); err == nil && string(b) != data {
					stale.Add(1)
				}
			})
		}
		readers.Wait()
		if n := stale.Load(); n > 0 {
			t.Fatalf("round %d: %d of 12 read an older version", i, n)
		}
	}
}

// Semantics "Rename, remove, links, attributes": who reads a directory slowly
// takes no version back that was stored since, and disturbs no writer.
func TestSlowReaddir(t *testing.T) {
	w := newWorld(t)
	var all []string
	for i := range 120 {
		name := fmt.Sprintf("%03d", i)
		w.put("d/"+name, []byte("version 1"))
		all = append(all, name)
	}
	m := w.mount()
	d, err := unix.Open(m.path("d"), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(d)
	buf := make([]byte, 512)
	n, err := unix.Getdents(d, buf)
	if err != nil {
		t.Fatal(err)
	}
	_, _, first := unix.ParseDirent(buf[:n], -1, nil)

	var files []*os.File
	for _, name := range all {
		if slices.Contains(first, name) {
			continue
		}
		f, err := os.OpenFile(m.path("d/"+name), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte("version 2"), 0); err != nil {
			t.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	for n > 0 {
		if n, err = unix.Getdents(d, buf); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range files {
		if _, err := f.WriteAt([]byte("version 3"), 0); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		wantFile(t, f.Name(), "version 3")
	}
}

// Semantics "Writing": truncate by path does not put what it made of one
// version in the place of another.
func TestTruncateWhileOverwritten(t *testing.T) {
	w := newWorld(t)
	old, fresh := pattern(1, 100_000), pattern(2, 100_000)
	w.put("f", []byte(old))
	var armed atomic.Bool
	var proxy http.Handler
	fetched, late := make(chan struct{}), hold(t)
	front := w.front(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/f") || !armed.CompareAndSwap(true, false) {
			return false
		}
		answer := httptest.NewRecorder()
		proxy.ServeHTTP(answer, r)
		close(fetched)
		<-late.open
		for k, v := range answer.Header() {
			rw.Header()[k] = v
		}
		rw.WriteHeader(answer.Code)
		rw.Write(answer.Body.Bytes())
		return true
	})
	proxy = front.Config.Handler
	so := w.storeOptions()
	so.Endpoint = front.URL
	m := w.mountStore(so, func(o *Options) { o.AttrTTL, o.EntryTTL = 1, 1 })
	stat(t, m.path("f"))
	armed.Store(true)
	truncated := make(chan error, 1)
	go func() { truncated <- os.Truncate(m.path("f"), 50_000) }()
	<-fetched
	w.put("f", []byte(fresh))
	looked := make(chan error, 1)
	go func() {
		for known := ""; known != etagOf(fresh) && t.Context().Err() == nil; known = m.fs.find("/f").etag() {
			var st unix.Stat_t
			if err := unix.Stat(m.path("f"), &st); err != nil {
				looked <- err
				return
			}
		}
		looked <- nil
	}()
	chance(looked)
	late.release()
	if err := <-truncated; err != nil {
		wantErrno(t, err, syscall.ESTALE)
		w.wantObject("f", fresh)
	} else {
		w.wantObject("f", fresh[:50_000])
	}
}

// Semantics "Rename, remove, links, attributes": attributes that cannot be
// stored do not change, and the file goes on as the bucket has it.
func TestRefusedAttributes(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"chmod":    func(path string) error { return os.Chmod(path, 0o600) },
		"utimens":  func(path string) error { return os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)) },
		"setxattr": func(path string) error { return unix.Setxattr(path, "user.a", []byte("b"), 0) },
		"by handle": func(path string) error {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			if err := f.Chmod(0o600); err != nil {
				return err
			}
			return f.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.put("f", []byte("one"), metaMode, "33188")
			m := w.mountFront(func(rw http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodPut {
					return false
				}
				s3Error(rw, http.StatusForbidden, "AccessDenied")
				return true
			})
			wantFile(t, m.path("f"), "one")
			before := stat(t, m.path("f"))
			wantErrno(t, change(m.path("f")), syscall.EACCES)
			eventually(t, "the attributes are as before", func() bool {
				after := stat(t, m.path("f"))
				return after.Mode == before.Mode && after.Mtim == before.Mtim
			})
			if _, err := unix.Getxattr(m.path("f"), "user.a", make([]byte, 10)); !errors.Is(err, unix.ENODATA) {
				t.Errorf("getxattr: %v", err)
			}
			w.put("f", []byte("two, longer"))
			wantFile(t, m.path("f"), "two, longer")
			if n := m.Stats().DirtyFiles; n != 0 {
				t.Errorf("%d files are to be stored", n)
			}
		})
	}
}

// Semantics "Rename, remove, links, attributes": attributes are set on the
// newest version, though the mount has just seen an older one, and unmount has
// nothing to complain of.
func TestChangeOfStaleVersion(t *testing.T) {
	w := newWorld(t)
	m := w.mount()
	for name, change := range map[string]func(path string) error{
		"chmod":    func(path string) error { return os.Chmod(path, 0o600) },
		"truncate": func(path string) error { return os.Truncate(path, 2) },
	} {
		w.put(name, []byte("one"))
		stat(t, m.path(name))
		w.put(name, []byte("two"))
		if err := change(m.path(name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.wantObject("chmod", "two")
	if got := w.meta("chmod")[metaMode]; got != "33152" {
		t.Errorf("mode is %q", got)
	}
	w.wantObject("truncate", "tw")
	if err := m.unmount(); err != nil {
		t.Errorf("unmount: %v", err)
	}
}
