package fs

import (
	"net/http"
	"os"
	"path/filepath"
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
		kept, err := filepath.Glob(m.spool + "/s3rdmafs-unsaved-*")
		if err != nil || len(kept) != 1 {
			t.Fatalf("kept: %q, %v", kept, err)
		}
		wantFile(t, kept[0], "precious")
	}
}

// Semantics "Writing": where the spool directory has no O_TMPFILE, what cannot
// be stored is kept as well.
func TestSpoolWithoutTmpfile(t *testing.T) {
	dir := t.TempDir()
	f, err := os.CreateTemp(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	p := &spool{f}
	defer p.close()
	data := pattern(1, 3<<20)
	if _, err := f.WriteString(data); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "kept")
	if err := p.save(path); err != nil {
		t.Fatal(err)
	}
	wantFile(t, path, data)
	if err := p.save(path); err == nil {
		t.Error("an existing file is overwritten")
	}
	wantFile(t, path, data)
}
