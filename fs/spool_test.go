package fs

import (
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
)

// Semantics "Writing": what unmount cannot store is kept, however long the name.
func TestUnsavedLongName(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{strings.Repeat("数", 30) + ".txt", strings.Repeat("x", 255), strings.Repeat("é", 127)} {
		m := w.mountFront(func(rw http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodPut {
				return false
			}
			s3Error(rw, http.StatusForbidden, "AccessDenied")
			return true
		})
		wantErrno(t, os.WriteFile(m.path(name), []byte("precious"), 0o644), syscall.EACCES)
		if err := m.unmount(); err == nil || !strings.Contains(err.Error(), name+" was not stored, its content is kept in "+m.spool) {
			t.Errorf("unmount: %v", err)
		}
		if l, ok := leftovers(t, m.spool)[name]; !ok || leftContent(t, l) != "precious" {
			t.Errorf("kept: %+v", l)
		}
	}
}
