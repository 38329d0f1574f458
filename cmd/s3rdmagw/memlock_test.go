package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// limited runs the program with a limit of 8 MiB for locked memory, which root
// has no longer the capability to exceed.
func limited(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	path, err := exec.LookPath("setpriv")
	if err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and setpriv to lower the limit for locked memory")
	}
	cmd.Args = append([]string{"setpriv", "--bounding-set", "-ipc_lock", "prlimit", "--memlock=8388608", cmd.Path}, cmd.Args[1:]...)
	cmd.Path = path
	cmd.Env = append(cmd.Env, "PATH="+os.Getenv("PATH"))
}

// Staging memory asked for and not to be had is an error that names the remedies;
// the default makes do with less.
func TestMemlock(t *testing.T) {
	cmd := program(t, "--dir", t.TempDir(), "--listen", "127.0.0.1:0", "--device", "shm", "--staging-size", "64MiB", "--log-level", "error")
	limited(t, cmd)
	out, err := cmd.CombinedOutput()
	said := strings.TrimSpace(string(out))
	if err == nil || strings.Contains(said, "\n") {
		t.Errorf("%v: %q", err, said)
	}
	for _, want := range []string{"staging memory of 64 MiB cannot be pinned, this process may lock 8.0 MiB", "ulimit -l", "LimitMEMLOCK=", "--staging-size", "--device none"} {
		if !strings.Contains(said, want) {
			t.Errorf("said %q, want %q", said, want)
		}
	}

	_, cmd, log := startWith(t, func(cmd *exec.Cmd) { limited(t, cmd) }, "--dir", t.TempDir(), "--device", "shm")
	stop(t, cmd, syscall.SIGTERM, log)
	if s := log.String(); !strings.Contains(s, "less staging memory than the default") || !strings.Contains(s, "device=shm") {
		t.Errorf("log: %s", s)
	}
}
