package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"s3rdmafs/fs"
	"s3rdmafs/internal/testenv"
)

// program is the built command; these tests use it as a user does.
var program string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "s3rdmafs-e2e")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "s3rdmafs")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// user is somebody at a shell, with a gateway to mount from.
type user struct {
	t   *testing.T
	env *testenv.Env
	dir string // mount point
	log string

	spool string
}

func newUser(t *testing.T, o testenv.Options) *user {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("needs /dev/fuse")
	}
	u := &user{t: t, dir: t.TempDir(), log: filepath.Join(t.TempDir(), "mount.log"), spool: t.TempDir()}
	u.env = testenv.Start(t, o)
	t.Cleanup(func() {
		// Whatever the test left: nothing may stay mounted on a directory that is about to be removed.
		for unix.Unmount(u.dir, unix.MNT_DETACH) == nil {
		}
		if t.Failed() {
			if log, err := os.ReadFile(u.log); err == nil {
				t.Logf("log of the mount:\n%s", log)
			}
		}
	})
	return u
}

// command is the program with the gateway's credentials in its environment.
func (u *user) command(args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(),
		"AWS_ACCESS_KEY_ID="+u.env.AccessKey, "AWS_SECRET_ACCESS_KEY="+u.env.SecretKey,
		"AWS_REGION="+u.env.Region, "AWS_ENDPOINT_URL="+u.env.Endpoint)
	return cmd
}

// run runs the program and returns its exit status and what it printed.
func (u *user) run(args ...string) (status int, output string) {
	u.t.Helper()
	return u.runCmd(u.command(args...))
}

func (u *user) runCmd(cmd *exec.Cmd) (status int, output string) {
	u.t.Helper()
	// A file, not a pipe: a daemon that inherits it must not hold the reader.
	out, err := os.CreateTemp(u.t.TempDir(), "out")
	if err != nil {
		u.t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		u.t.Fatal(err)
	}
	text, err := os.ReadFile(out.Name())
	if err != nil {
		u.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(text)
}

func (u *user) mount(source string, flags ...string) {
	u.t.Helper()
	args := append([]string{"mount", source, u.dir, "--log-file", u.log, "--cache-size", "64MiB", "--spool-dir", u.spool}, flags...)
	if status, out := u.run(args...); status != 0 {
		u.t.Fatalf("mount: exit status %d: %s", status, out)
	}
}

// umount unmounts and checks that the mount gave back all pinned memory.
func (u *user) umount() {
	u.t.Helper()
	if status, out := u.run("umount", u.dir); status != 0 {
		u.t.Fatalf("umount: exit status %d: %s", status, out)
	}
	u.endedClean()
}

func (u *user) endedClean() {
	u.t.Helper()
	log := u.readLog()
	lines := strings.Split(strings.TrimSpace(log), "\n")
	if last := lines[len(lines)-1]; !strings.Contains(last, "msg=unmounted pinned=0 clean=true") {
		u.t.Errorf("the log ends with %q, want a clean unmount with nothing pinned", last)
	}
}

// kill ends the mount's process with SIGKILL.
func (u *user) kill() {
	u.t.Helper()
	u.killPID(int(u.stat("pid")))
}

func (u *user) killPID(pid int) {
	u.t.Helper()
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		u.t.Fatal(err)
	}
	defer unix.Close(pidfd)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		u.t.Fatal(err)
	}
	if err := waitExit(pidfd, pid, time.Minute); err != nil {
		u.t.Fatal(err)
	}
}

func (u *user) readLog() string {
	u.t.Helper()
	log, err := os.ReadFile(u.log)
	if err != nil {
		u.t.Fatal(err)
	}
	return string(log)
}

// stat reads one counter.
func (u *user) stat(name string) int64 {
	u.t.Helper()
	status, out := u.run("stat", u.dir, "--get", name)
	n, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
	if status != 0 || err != nil {
		u.t.Fatalf("stat --get %s: exit status %d: %s", name, status, out)
	}
	return n
}

// tree makes files of many sizes, among them some beyond one RDMA transfer.
func tree(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	rnd := rand.NewChaCha8([32]byte{7})
	for i, size := range []int{0, 1, 4095, 4096, 64 << 10, 64<<10 - 1, 1 << 20, 5<<20 + 3, 40 << 20} {
		dir := filepath.Join(root, fmt.Sprintf("dir %d", i%3), "ü+%41")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		data := make([]byte, size)
		rnd.Read(data)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("file %d", size)), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// sums maps each file below root to the sha256 of its content.
func sums(t *testing.T, root string) map[string][32]byte {
	t.Helper()
	got := map[string][32]byte{}
	err := filepath.WalkDir(root, func(path string, d iofs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		got[rel] = sha256.Sum256(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func equalTrees(t *testing.T, want, got string) {
	t.Helper()
	a, b := sums(t, want), sums(t, got)
	for name, sum := range a {
		if other, ok := b[name]; !ok || other != sum {
			t.Errorf("%s: there: %v, equal: %v", name, ok, other == sum)
		}
		delete(b, name)
	}
	for name := range b {
		t.Errorf("%s was not in the source", name)
	}
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", "-r", from+"/.", to).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v: %s", err, out)
	}
}

// roundTrip copies a tree in, mounts anew, and compares it from outside the caches.
func roundTrip(t *testing.T, u *user, flags ...string) {
	t.Helper()
	bucket := u.env.NewBucket("")
	source := tree(t)
	u.mount("s3://"+bucket, flags...)
	copyTree(t, source, filepath.Join(u.dir, "tree"))
	u.umount()
	u.mount("s3://"+bucket, flags...)
	out := t.TempDir()
	copyTree(t, u.dir, out)
	equalTrees(t, source, filepath.Join(out, "tree"))
}

func TestCopyInAndOutByRDMA(t *testing.T) {
	u := newUser(t, testenv.Options{RDMA: true})
	roundTrip(t, u, "--rdma", "require")
	if n := u.stat("store.read.rdma.bytes"); n < 40<<20 {
		t.Errorf("%d bytes were read by RDMA, want at least the large file", n)
	}
	for _, name := range []string{"store.http_data_bytes_eligible", "rdma.cookie_mismatches"} {
		if n := u.stat(name); n != 0 {
			t.Errorf("%s = %d, want 0", name, n)
		}
	}
	u.umount()
}

func TestCopyInAndOutByHTTP(t *testing.T) {
	u := newUser(t, testenv.Options{RDMA: true})
	roundTrip(t, u, "--rdma", "off")
	if n := u.stat("store.read.rdma.bytes"); n != 0 {
		t.Errorf("%d bytes were read by RDMA although it is off", n)
	}
	if n := u.stat("store.read.http.bytes"); n < 40<<20 {
		t.Errorf("%d bytes were read by HTTP, want at least the large file", n)
	}
	u.umount()
}

func TestPlainServerMeansHTTPAndOneLogLine(t *testing.T) {
	u := newUser(t, testenv.Options{})
	roundTrip(t, u, "--rdma", "auto")
	if n := u.stat("store.read.http.bytes"); n < 40<<20 {
		t.Errorf("%d bytes were read by HTTP, want at least the large file", n)
	}
	u.umount()
	// Two mounts wrote to the log; each says once why RDMA is not used.
	said := 0
	for line := range strings.Lines(u.readLog()) {
		if strings.Contains(line, "RDMA not used") {
			said++
		}
	}
	if said != 2 {
		t.Errorf("the log says %d times why RDMA is not used, want once for each of two mounts", said)
	}
}

func TestAllBuckets(t *testing.T) {
	u := newUser(t, testenv.Options{RDMA: true})
	one, two := u.env.NewBucket(""), u.env.NewBucket("")
	u.env.Put(one, "a/b", []byte("first"))
	u.env.Put(two, "c", []byte("second"))
	u.mount("s3://")
	entries, err := os.ReadDir(u.dir)
	if err != nil || len(entries) != 2 {
		t.Fatalf("ReadDir = %v, %v; want two buckets", entries, err)
	}
	for path, want := range map[string]string{one + "/a/b": "first", two + "/c": "second"} {
		if got, err := os.ReadFile(filepath.Join(u.dir, path)); err != nil || string(got) != want {
			t.Errorf("%s = %q, %v; want %q", path, got, err, want)
		}
	}
	u.umount()
}

func TestPrefix(t *testing.T) {
	u := newUser(t, testenv.Options{RDMA: true})
	bucket := u.env.NewBucket("")
	u.env.Put(bucket, "in/side", []byte("yes"))
	u.env.Put(bucket, "outside", []byte("no"))
	u.mount("s3://" + bucket + "/in")
	entries, err := os.ReadDir(u.dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "side" {
		t.Fatalf("ReadDir = %v, %v; want the one entry below the prefix", entries, err)
	}
	if err := os.WriteFile(filepath.Join(u.dir, "new"), []byte("data"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := u.env.Get(bucket, "in/new"); string(got) != "data" {
		t.Errorf("object in/new = %q", got)
	}
	u.umount()
}

func TestGatewayKilledDuringRead(t *testing.T) {
	u := newUser(t, testenv.Options{RDMA: true})
	bucket := u.env.NewBucket("")
	data := make([]byte, 256<<20)
	rand.NewChaCha8([32]byte{9}).Read(data)
	u.env.Put(bucket, "big", data)
	u.mount("s3://"+bucket, "--op-timeout", "10s")

	f, err := os.Open(filepath.Join(u.dir, "big"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 1<<20)
	if _, err := io.ReadFull(f, buf); err != nil {
		t.Fatal(err)
	}
	u.env.Kill()
	readErr := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, f)
		readErr <- err
	}()
	select {
	case err := <-readErr:
		if !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.ETIMEDOUT) {
			t.Errorf("read with the server dead = %v, want EIO or ETIMEDOUT", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the read hangs")
	}
	f.Close()

	u.env.Restart()
	got, err := os.ReadFile(filepath.Join(u.dir, "big"))
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("after the restart: equal %v, err %v", bytes.Equal(got, data), err)
	}
	u.env.Kill()
	u.umount()
}

func TestSignalsUnmount(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			u := newUser(t, testenv.Options{RDMA: true})
			bucket := u.env.NewBucket("")
			u.mount("s3://" + bucket)
			// Held open, so the data is stored by nothing but the unmount.
			f, err := os.Create(filepath.Join(u.dir, "unsaved"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteString("written, not closed"); err != nil {
				t.Fatal(err)
			}
			pid := int(u.stat("pid"))
			pidfd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(pidfd)
			if err := syscall.Kill(pid, sig); err != nil {
				t.Fatal(err)
			}
			if err := waitExit(pidfd, pid, time.Minute); err != nil {
				t.Fatal(err)
			}
			u.endedClean()
			if got := u.env.Get(bucket, "unsaved"); string(got) != "written, not closed" {
				t.Errorf("object = %q", got)
			}
		})
	}
}

func TestDeadMountIsCleared(t *testing.T) {
	u := newUser(t, testenv.Options{RDMA: true})
	bucket := u.env.NewBucket("")
	u.env.Put(bucket, "key", []byte("data"))
	u.mount("s3://" + bucket)
	u.kill()
	u.mount("s3://" + bucket)
	if got, err := os.ReadFile(filepath.Join(u.dir, "key")); err != nil || string(got) != "data" {
		t.Errorf("after mounting over a dead mount: %q, %v", got, err)
	}
	u.kill()
	if status, out := u.run("umount", u.dir); status != 0 {
		t.Errorf("umount of a dead mount: exit status %d: %s", status, out)
	}
	if err := unix.Unmount(u.dir, unix.MNT_DETACH); !errors.Is(err, unix.EINVAL) {
		t.Errorf("something is still mounted: %v", err)
	}
}

func TestUmountOfABusyMountSaysSo(t *testing.T) {
	u := newUser(t, testenv.Options{})
	bucket := u.env.NewBucket("")
	u.env.Put(bucket, "key", []byte("data"))
	u.mount("s3://" + bucket)
	f, err := os.Open(filepath.Join(u.dir, "key"))
	if err != nil {
		t.Fatal(err)
	}
	status, out := u.run("umount", u.dir)
	f.Close()
	if status == 0 || !strings.Contains(out, "in use") {
		t.Errorf("umount of a busy mount: exit status %d: %q", status, out)
	}
	u.umount()
}

func TestStatForms(t *testing.T) {
	u := newUser(t, testenv.Options{RDMA: true})
	u.mount("s3://" + u.env.NewBucket(""))
	status, out := u.run("stat", u.dir, "--json")
	var doc map[string]any
	if err := json.Unmarshal([]byte(out), &doc); status != 0 || err != nil {
		t.Fatalf("stat --json: exit status %d, %v: %s", status, err, out)
	}
	status, out = u.run("stat", u.dir)
	for _, want := range []string{"pid", "cache.pinned", "store.read.rdma.bytes", "transport.device"} {
		if status != 0 || !strings.Contains(out, want) {
			t.Errorf("stat: exit status %d, no %s in:\n%s", status, want, out)
		}
	}
	if status, out = u.run("stat", u.dir, "--get", "no.such"); status == 0 {
		t.Errorf("stat --get of an unknown counter succeeds: %s", out)
	}
	u.umount()
}

func TestForeground(t *testing.T) {
	u := newUser(t, testenv.Options{})
	bucket := u.env.NewBucket("")
	cmd := u.command("mount", "s3://"+bucket, u.dir, "-f", "--spool-dir", u.spool)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	var log bytes.Buffer
	buf := make([]byte, 4096)
	for !strings.Contains(log.String(), "msg=mounted") {
		n, err := stderr.Read(buf)
		log.Write(buf[:n])
		if err != nil {
			t.Fatalf("%v before the mount: %s", err, log.String())
		}
	}
	if _, err := os.ReadDir(u.dir); err != nil {
		t.Error(err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(stderr)
	if err := cmd.Wait(); err != nil {
		t.Errorf("exit: %v\n%s%s", err, log.String(), rest)
	}
}

func TestDevicesListsTheSoftwareDevice(t *testing.T) {
	out, err := exec.Command(program, "devices").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "shm") {
		t.Errorf("devices: %v: %s", err, out)
	}
	out, err = exec.Command(program, "devices", "--json").Output()
	var doc []map[string]any
	if err != nil || json.Unmarshal(out, &doc) != nil || len(doc) == 0 {
		t.Errorf("devices --json: %v: %s", err, out)
	}
}

func TestVersion(t *testing.T) {
	out, err := exec.Command(program, "--version").CombinedOutput()
	if err != nil || len(bytes.TrimSpace(out)) == 0 {
		t.Errorf("--version: %v: %s", err, out)
	}
}

// Each bad input gives one sentence that names what is wrong, a non-zero exit
// status, and no mount.
func TestBadInput(t *testing.T) {
	u := newUser(t, testenv.Options{RDMA: true})
	bucket := u.env.NewBucket("")
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	mounted := newUser(t, testenv.Options{})
	mounted.mount("s3://" + mounted.env.NewBucket(""))
	defer mounted.umount()

	source := "s3://" + bucket
	for _, test := range []struct {
		name string
		args []string
		env  string
		want string
	}{
		{"no such bucket", []string{"s3://no-such-bucket", u.dir}, "", "no such bucket"},
		{"wrong secret", []string{source, u.dir}, "AWS_SECRET_ACCESS_KEY=wrong", "refuses the credentials"},
		{"unknown access key", []string{source, u.dir}, "AWS_ACCESS_KEY_ID=nobody", "refuses the credentials"},
		{"endpoint down", []string{source, u.dir, "--endpoint", "http://127.0.0.1:1"}, "", "no usable answer from the endpoint"},
		{"endpoint no URL", []string{source, u.dir, "--endpoint", "ftp://127.0.0.1"}, "", "http or https"},
		{"mount point missing", []string{source, filepath.Join(u.dir, "missing")}, "", "does not exist"},
		{"mount point a file", []string{source, filepath.Join(full, "file")}, "", "not a directory"},
		{"mount point not empty", []string{source, full}, "", "not empty"},
		{"already mounted", []string{source, mounted.dir}, "", "already has"},
		{"unknown device", []string{source, u.dir, "--device", "mlx9_9"}, "", "mlx9_9"},
		{"require, unknown device", []string{source, u.dir, "--device", "mlx9_9", "--rdma", "require"}, "", "mlx9_9"},
		{"no URL", []string{bucket, u.dir}, "", "s3://"},
		{"bad size", []string{source, u.dir, "--cache-size", "lots"}, "", "not a size"},
		{"cache too small", []string{source, u.dir, "--cache-size", "1KiB"}, "", "too small"},
		{"no cache", []string{source, u.dir, "--cache-size", "0"}, "", "too small"},
		{"no time", []string{source, u.dir, "--op-timeout", "0s"}, "", "--op-timeout"},
		{"bad mode", []string{source, u.dir, "--file-mode", "9"}, "", "octal"},
		{"bad rdma mode", []string{source, u.dir, "--rdma", "perhaps"}, "", "auto"},
		{"log file", []string{source, u.dir, "--log-file", filepath.Join(full, "file", "log")}, "", "log file"},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd := u.command(append([]string{"mount"}, test.args...)...)
			if test.env != "" {
				cmd.Env = append(cmd.Env, test.env)
			}
			u.refused(t, cmd, test.want)
		})
	}
	t.Run("require, server without the protocol", func(t *testing.T) {
		u.refused(t, mounted.command("mount", "s3://"+mounted.env.NewBucket(""), u.dir, "--rdma", "require"), "does not speak hipobj-rc-v2")
	})
	t.Run("cache larger than memlock allows", func(t *testing.T) {
		cmd := u.withoutMemlock("mount", source, u.dir, "--cache-size", "64MiB")
		u.refused(t, cmd, "ulimit -l")
	})
}

func (u *user) refused(t *testing.T, cmd *exec.Cmd, want string) {
	t.Helper()
	status, out := u.runCmd(cmd)
	out = strings.TrimSpace(out)
	if status == 0 {
		t.Errorf("exit status 0: %s", out)
	}
	if !strings.Contains(out, want) {
		t.Errorf("says %q, want something with %q", out, want)
	}
	if strings.Count(out, "\n") > 0 {
		t.Errorf("says more than one line:\n%s", out)
	}
	if _, err := fs.FindMount(u.dir); err == nil {
		t.Error("a mount is there all the same")
	}
}

func TestUmountSaysWhatWasNotStored(t *testing.T) {
	u := newUser(t, testenv.Options{RDMA: true})
	u.mount("s3://"+u.env.NewBucket(""), "--op-timeout", "3s")
	f, err := os.Create(filepath.Join(u.dir, "kept"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("data"); err != nil {
		t.Fatal(err)
	}
	u.env.Kill()
	if err := f.Close(); err == nil {
		t.Error("close succeeds with the server gone")
	}
	status, out := u.run("umount", u.dir)
	if status == 0 || !strings.Contains(out, "kept") || strings.Count(strings.TrimSpace(out), "\n") > 0 {
		t.Errorf("umount: exit status %d: %q; want a failure that names the file", status, out)
	}
	if _, err := fs.FindMount(u.dir); err == nil {
		t.Error("still mounted")
	}
}

// Nobody asked for RDMA or for a size, so a small locked-memory limit is no
// error; but the user at the terminal is told.
func TestWarningsOfTheStartReachTheTerminal(t *testing.T) {
	u := newUser(t, testenv.Options{RDMA: true})
	cmd := u.withoutMemlock("mount", "s3://"+u.env.NewBucket(""), u.dir, "--log-file", u.log)
	status, out := u.runCmd(cmd)
	if status != 0 || !strings.Contains(out, "note: RDMA not used") {
		t.Errorf("mount: exit status %d: %q; want a note that RDMA is not used", status, out)
	}
	u.umount()
}

// withoutMemlock is the program as a process that may lock 1 MiB.
func (u *user) withoutMemlock(args ...string) *exec.Cmd {
	u.t.Helper()
	path, err := exec.LookPath("setpriv")
	if err != nil {
		u.t.Fatal(err)
	}
	cmd := u.command(args...)
	// Root may lock any amount unless it lacks the capability.
	cmd.Args = append([]string{"setpriv", "--bounding-set", "-ipc_lock", "prlimit", "--memlock=1048576", program}, args...)
	cmd.Path = path
	return cmd
}

func TestUmountThroughASymlink(t *testing.T) {
	u := newUser(t, testenv.Options{})
	u.mount("s3://" + u.env.NewBucket(""))
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(u.dir, link); err != nil {
		t.Fatal(err)
	}
	if status, out := u.run("umount", link); status != 0 {
		t.Errorf("umount: exit status %d: %s", status, out)
	}
	u.endedClean()
}

func TestAPrefixWithNothingIsNoted(t *testing.T) {
	u := newUser(t, testenv.Options{})
	status, out := u.run("mount", "s3://"+u.env.NewBucket("")+"/typo", u.dir, "--log-file", u.log)
	if status != 0 || !strings.Contains(out, "note: nothing is there yet") {
		t.Errorf("mount: exit status %d: %q; want a note", status, out)
	}
	u.umount()
}

func TestUmountOfNoMount(t *testing.T) {
	u := newUser(t, testenv.Options{})
	u.refused(t, u.command("umount", u.dir), "no s3rdmafs is mounted")
	u.refused(t, u.command("stat", u.dir), "no s3rdmafs is mounted")
}

func TestReadOnly(t *testing.T) {
	u := newUser(t, testenv.Options{RDMA: true})
	bucket := u.env.NewBucket("")
	u.env.Put(bucket, "key", []byte("data"))
	u.mount("s3://"+bucket, "--read-only")
	if err := os.WriteFile(filepath.Join(u.dir, "new"), []byte("x"), 0o644); !errors.Is(err, syscall.EROFS) {
		t.Errorf("create = %v, want EROFS", err)
	}
	if err := os.Remove(filepath.Join(u.dir, "key")); !errors.Is(err, syscall.EROFS) {
		t.Errorf("remove = %v, want EROFS", err)
	}
	u.umount()
	if got := u.env.Get(bucket, "key"); string(got) != "data" {
		t.Errorf("object = %q", got)
	}
}

func TestOwnerAndModeFlags(t *testing.T) {
	u := newUser(t, testenv.Options{})
	bucket := u.env.NewBucket("")
	u.env.Put(bucket, "dir/key", []byte("data"))
	u.mount("s3://"+bucket, "--uid", "1234", "--gid", "2345", "--file-mode", "0640", "--dir-mode", "0710")
	for path, mode := range map[string]uint32{"dir": syscall.S_IFDIR | 0o710, "dir/key": syscall.S_IFREG | 0o640} {
		var st syscall.Stat_t
		if err := syscall.Stat(filepath.Join(u.dir, path), &st); err != nil {
			t.Fatal(err)
		}
		if st.Uid != 1234 || st.Gid != 2345 || st.Mode != mode {
			t.Errorf("%s: uid %d gid %d mode %o, want 1234 2345 %o", path, st.Uid, st.Gid, st.Mode, mode)
		}
	}
	u.umount()
}

// The gateway can stop for good with nothing open; the unmount does not care.
func TestUmountWithTheServerGone(t *testing.T) {
	u := newUser(t, testenv.Options{RDMA: true})
	u.mount("s3://" + u.env.NewBucket(""))
	u.env.Kill()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, "umount", u.dir).CombinedOutput()
	if err != nil {
		t.Errorf("umount: %v: %s", err, out)
	}
}
