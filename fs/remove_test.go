package fs

import (
	"net/http"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Semantics "Writing": a file that was refused, or whose fate nobody knows, can
// be removed, whether the bucket lets objects be removed or not.
func TestRemoveRefused(t *testing.T) {
	for name, status := range map[string]int{"refused": http.StatusForbidden, "unknown fate": http.StatusInternalServerError} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			code := map[int]string{http.StatusForbidden: "AccessDenied", http.StatusInternalServerError: "InternalError"}[status]
			f := w.front(func(rw http.ResponseWriter, r *http.Request) bool {
				switch r.Method {
				case http.MethodPut:
					s3Error(rw, status, code)
				case http.MethodDelete:
					s3Error(rw, http.StatusForbidden, "AccessDenied")
				default:
					return false
				}
				return true
			})
			so := w.storeOptions()
			so.Endpoint, so.RetryFor = f.URL, 100*time.Millisecond
			m := w.mountStore(so)
			if err := os.WriteFile(m.path("f"), []byte("x"), 0o644); err == nil {
				t.Fatal("stored")
			}
			if err := os.Remove(m.path("f")); err != nil {
				t.Error(err)
			}
			if got := names(t, m.dir); len(got) != 0 {
				t.Errorf("listed %q", got)
			}
		})
	}
}

// Semantics "Writing": where the answer to a store was lost, the object is
// removed with the file.
func TestRemoveStoredUnseen(t *testing.T) {
	w := newWorld(t)
	var lost atomic.Bool
	f := w.front(func(rw http.ResponseWriter, r *http.Request) bool {
		if !lost.Load() || r.Method != http.MethodPut && r.Method != http.MethodHead {
			return false
		}
		if r.Method == http.MethodPut {
			w.put("f", []byte("x"))
		}
		s3Error(rw, http.StatusInternalServerError, "InternalError")
		return true
	})
	so := w.storeOptions()
	so.Endpoint, so.RetryFor = f.URL, 100*time.Millisecond
	m := w.mountStore(so)
	file, err := os.Create(m.path("f"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString("x"); err != nil {
		t.Fatal(err)
	}
	lost.Store(true)
	wantErrno(t, file.Close(), syscall.EIO)
	w.wantObject("f", "x")
	if err := os.Remove(m.path("f")); err != nil {
		t.Error(err)
	}
	w.wantNoObject("f")
}

// Semantics "Rename": a bucket with a file that is not stored yet is not empty.
func TestRmdirBucket(t *testing.T) {
	w := newWorld(t)
	m := w.mount(func(o *Options) { o.Bucket = "" })
	file, err := os.Create(m.path(w.bucket + "/f"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString("x"); err != nil {
		t.Fatal(err)
	}
	wantErrno(t, unix.Rmdir(m.path(w.bucket)), syscall.ENOTEMPTY)
	if err := file.Close(); err != nil {
		t.Error(err)
	}
	w.wantObject("f", "x")
	wantErrno(t, unix.Rmdir(m.path(w.bucket)), syscall.ENOTEMPTY)
	if err := os.Remove(m.path(w.bucket + "/f")); err != nil {
		t.Error(err)
	}
	if err := unix.Rmdir(m.path(w.bucket)); err != nil {
		t.Error(err)
	}
}
