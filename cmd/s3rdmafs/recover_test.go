package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"s3rdmafs/internal/testenv"
)

// left makes a mount write files, without closing them, and kills it.
func (u *user) left(bucket string, files map[string]string) {
	u.t.Helper()
	u.mount("s3://" + bucket)
	// No program is run from here on: a fork and exec closes its copies of the
	// descriptors, which stores the files.
	pid := int(u.stat("pid"))
	for name, data := range files {
		path := filepath.Join(u.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			u.t.Fatal(err)
		}
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			u.t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteAt([]byte(data), 0); err != nil {
			u.t.Fatal(err)
		}
	}
	u.killPID(pid)
}

func (u *user) recover(status int, args ...string) string {
	u.t.Helper()
	got, out := u.run(append([]string{"recover", "--spool-dir", u.spool}, args...)...)
	if got != status {
		u.t.Fatalf("recover %q: exit status %d, want %d: %s", args, got, status, out)
	}
	return out
}

func TestRecover(t *testing.T) {
	u := newUser(t, testenv.Options{RDMA: true})
	bucket := u.env.NewBucket("")
	if out := u.recover(0); out != "" {
		t.Errorf("nothing was left, but it says %q", out)
	}
	u.env.Put(bucket, "mine", []byte("base"))
	u.left(bucket, map[string]string{"new": "new data", "dir/mine": "my data", "mine": "changed here"})
	u.env.Put(bucket, "mine", []byte("changed elsewhere"))

	out := u.recover(0, "--list")
	for _, key := range []string{"new", "dir/mine", "mine"} {
		if !strings.Contains(out, "s3://"+bucket+"/"+key+" ") {
			t.Errorf("%s is not listed:\n%s", key, out)
		}
	}
	if again := u.recover(0); again != out {
		t.Errorf("listing is not the default, or changes something:\n%s", again)
	}
	if out := u.recover(0, "s3://"+bucket+"/other"); out != "" {
		t.Errorf("of another prefix: %q", out)
	}
	if out := u.recover(0, "--endpoint", "http://elsewhere"); out != "" {
		t.Errorf("of another endpoint: %q", out)
	}

	out = u.recover(1, "s3://"+bucket, "--replay")
	if strings.Count(out, "replayed") != 2 || strings.Count(out, "conflict") != 1 {
		t.Errorf("replay says:\n%s", out)
	}
	for key, want := range map[string]string{"new": "new data", "dir/mine": "my data", "mine": "changed elsewhere"} {
		if got := string(u.env.Get(bucket, key)); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	if out := u.recover(0); strings.Count(out, "\n") != 1 || !strings.Contains(out, "not the one it was made from") {
		t.Errorf("left after the replay:\n%s", out)
	}

	dir := t.TempDir()
	u.recover(0, "--export", dir)
	if got, err := os.ReadFile(filepath.Join(dir, bucket, "mine")); err != nil || string(got) != "changed here" {
		t.Errorf("exported: %q, %v", got, err)
	}
	if out := u.recover(0); out != "" {
		t.Errorf("left after the export:\n%s", out)
	}
	u.left(bucket, map[string]string{"mine": "again"})
	u.recover(0, "--export", dir)
	if got, err := os.ReadFile(filepath.Join(dir, bucket, "mine.2")); err != nil || string(got) != "agained elsewhere" {
		t.Errorf("exported beside another: %q, %v", got, err)
	}
}

// What a killed mount left is stored by the next, unless that is told not to;
// a living mount's spool is left alone.
func TestNextMountReplays(t *testing.T) {
	u := newUser(t, testenv.Options{RDMA: true})
	bucket := u.env.NewBucket("")
	u.left(bucket, map[string]string{"new": "new data"})
	u.mount("s3://"+bucket, "--no-replay")
	if n := u.stat("recovery.kept"); n != 1 {
		t.Errorf("%d kept", n)
	}
	if out := u.recover(0, "--export", t.TempDir()); !strings.Contains(out, "left alone") {
		t.Errorf("recover beside a living mount says %q", out)
	}
	u.umount()
	u.mount("s3://" + bucket)
	if n := u.stat("recovery.replayed"); n != 1 {
		t.Errorf("%d replayed", n)
	}
	if got, err := os.ReadFile(filepath.Join(u.dir, "new")); err != nil || string(got) != "new data" {
		t.Errorf("new is %q, %v", got, err)
	}
	u.umount()
}

func TestSpoolDirectoryThatCannotBe(t *testing.T) {
	u := newUser(t, testenv.Options{RDMA: true})
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	u.refused(t, u.command("mount", "s3://"+u.env.NewBucket(""), u.dir, "--spool-dir", file), "spool directory")
}
