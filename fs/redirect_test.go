package fs

import (
	"bufio"
	"os/exec"
	"testing"
)

// Semantics "Writing": the old object stays whole until the new one is
// complete, also while a shell holds a redirect into its file open, for which it
// duplicates and closes the descriptor it opened.
func TestRedirectStoresNothingEarly(t *testing.T) {
	w := newWorld(t)
	w.put("old", []byte("old content"))
	m := w.mount()
	for name, early := range map[string]func(){
		"old": func() { w.wantObject("old", "old content") },
		"new": func() { w.wantNoObject("new") },
	} {
		sh := exec.Command("sh", "-c", `exec >"$1"; echo ready >&2; read line; echo "$line"`, "sh", m.path(name))
		stdin, err := sh.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		stderr, err := sh.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := sh.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(stderr).ReadString('\n'); err != nil || line != "ready\n" {
			t.Fatalf("shell: %q, %v", line, err)
		}
		early()
		if _, err := stdin.Write([]byte("new content\n")); err != nil {
			t.Fatal(err)
		}
		if err := sh.Wait(); err != nil {
			t.Fatal(err)
		}
		w.wantObject(name, "new content\n")
	}
}

// A file that stays empty is stored by the close of its last descriptor.
func TestRedirectOfNothing(t *testing.T) {
	w := newWorld(t)
	w.put("old", []byte("old content"))
	m := w.mount()
	for _, name := range []string{"old", "new"} {
		if out, err := exec.Command("sh", "-c", `: >"$1"`, "sh", m.path(name)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		w.wantObject(name, "")
	}
	before := m.Stats().Uploads
	if out, err := exec.Command("sh", "-c", `echo data >"$1"`, "sh", m.path("once")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w.wantObject("once", "data\n")
	if n := m.Stats().Uploads - before; n != 1 {
		t.Errorf("%d uploads for one redirect, want 1", n)
	}
}
