package fs

import (
	"go/build"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// stdlibExceptions are the tests of the standard library that do not fit S3,
// with the reason.
var stdlibExceptions = map[string]map[string]string{
	"os": {
		"TestHardLink":                   "hard links",
		"TestRootLinkFrom":               "hard links",
		"TestRootConsistencyLink":        "hard links",
		"TestRootMultiLink":              "hard links",
		"TestLongPath":                   "hard links",
		"TestFifoEOF":                    "a named pipe",
		"TestSendFile":                   "a unix socket",
		"TestNonpollableDeadline":        "expects files not to be pollable; the kernel says that those of FUSE are",
		"TestFIFONonBlockingEOF":         "a named pipe",
		"TestSpliceFile":                 "a unix socket",
		"TestGetPollFDAndNetwork$/^unix": "a unix socket",
		"TestGetwdDeep":                  "a path whose key has more than 1024 bytes",
		"TestGetwdDeepWithPWDSet":        "a path whose key has more than 1024 bytes",
		"TestRemoveAllLongPath":          "a path whose key has more than 1024 bytes",
	},
	"io/fs":         {},
	"path/filepath": {},
}

// stdlibLong are tests that make so many files that they are for make
// test-long.
const stdlibLong = "^TestRoot"

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
			skip := []string{"^$"}
			for name := range exceptions {
				skip = append(skip, "^"+name+"$")
			}
			if os.Getenv(longTests) == "" {
				skip = append(skip, stdlibLong)
			}
			cmd := exec.Command(bin, "-test.short", "-test.timeout", "1h", "-test.skip", strings.Join(skip, "|"))
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
