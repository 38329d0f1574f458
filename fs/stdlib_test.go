package fs

import (
	"go/build"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// stdlibExceptions are the tests of the standard library that do not fit S3,
// with the reason.
var stdlibExceptions = map[string]map[string]string{
	"os":            {},
	"io/fs":         {},
	"path/filepath": {},
}

// The tests of the standard library's file packages run with their temporary
// files in a mount.
func TestStandardLibrary(t *testing.T) {
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("needs the go command")
	}
	w := newWorld(t)
	m := w.mount()
	for pkg, exceptions := range stdlibExceptions {
		t.Run(pkg, func(t *testing.T) {
			bin := filepath.Join(t.TempDir(), "test")
			if out, err := exec.Command(goTool, "test", "-c", "-o", bin, pkg).CombinedOutput(); err != nil {
				t.Fatalf("build: %v\n%s", err, out)
			}
			skip := "^()$"
			for name := range exceptions {
				skip += "|^" + regexp.QuoteMeta(name) + "$"
			}
			cmd := exec.Command(bin, "-test.short", "-test.timeout", "5m", "-test.skip", skip)
			cmd.Dir = filepath.Join(build.Default.GOROOT, "src", pkg)
			cmd.Env = append(os.Environ(), "TMPDIR="+m.dir)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	if st := m.Stats(); st.DirtyFiles != 0 {
		t.Errorf("%d files stayed dirty", st.DirtyFiles)
	}
}
