package apps

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	// enable is the environment variable that make test-apps sets.
	enable = "S3RDMAFS_APPS"
	// skipped is the exit code of a script that cannot run here; the last line
	// of its output says why.
	skipped = 77
)

// programs are the scripts of testdata, with the time each may take: several
// times what it needs on a machine that is busy.
var programs = []struct {
	name  string
	limit time.Duration
}{
	{"limits", time.Minute},
	{"git", 5 * time.Minute},
	{"sqlite", 5 * time.Minute},
	{"rsync", 5 * time.Minute},
	{"tar", 5 * time.Minute},
	{"editors", 3 * time.Minute},
	{"zip", 3 * time.Minute},
	{"venv", 10 * time.Minute},
	{"checkpoint", 5 * time.Minute},
	{"fio", 5 * time.Minute},
	{"dbench", 5 * time.Minute},
	{"stress", 10 * time.Minute},
	{"cpython", 15 * time.Minute},
	{"bbolt", 15 * time.Minute},
}

// TestPrograms runs each program in a directory of its own of one mount, and
// at the end looks at what they left from another mount.
func TestPrograms(t *testing.T) {
	if os.Getenv(enable) == "" {
		t.Skip("takes ten minutes and Debian packages; run by make test-apps, which sets " + enable)
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("needs /dev/fuse")
	}
	s := startServer(t)
	m := s.mount(t)
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			dir := filepath.Join(m.dir, p.name)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			run(t, p.name, dir, p.limit)
			m.wantStored(t)
		})
	}
	if t.Failed() {
		t.Logf("log of the mount:\n%s", m.readLog(t))
	}
	left := readTree(t, m.dir)
	m.unmount(t)

	m = s.mount(t)
	left.compare(t, readTree(t, m.dir))
	m.unmount(t)
}

// run runs the script of a program in dir.
func run(t *testing.T, name, dir string, limit time.Duration) {
	t.Helper()
	testdata, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", `. "$TESTDATA/lib.sh"; . "$TESTDATA/$0.sh"`, name)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LOCAL="+t.TempDir(), "TESTDATA="+testdata)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	group := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel = group
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(out))
	var exit *exec.ExitError
	switch {
	case err == nil:
		if text != "" {
			t.Log(text)
		}
	case ctx.Err() != nil:
		t.Errorf("did not end within %v\n%s", limit, text)
	case errors.As(err, &exit) && exit.ExitCode() == skipped:
		t.Skip(text[strings.LastIndexByte(text, '\n')+1:])
	default:
		if cmd.Process != nil {
			group() // what it left in the background
		}
		t.Errorf("%v\n%s", err, text)
	}
}
