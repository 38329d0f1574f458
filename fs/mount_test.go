package fs

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"golang.org/x/sys/unix"

	"s3rdmafs/cache"
	"s3rdmafs/store"
)

// options are those of mount for calls of Mount that are to fail.
func (w *world) options(so store.Options) Options {
	w.t.Helper()
	st, err := store.Open(so)
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := cache.New(cache.Options{Size: 1 << 20, Source: st})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := c.Close(w.t.Context()); err != nil {
			w.t.Error(err)
		}
		st.Close()
	})
	return Options{Store: st, Cache: c, Bucket: w.bucket, SpoolDir: w.t.TempDir()}
}

// Semantics "Errors and time": otherwise one clear sentence.
func TestMountErrors(t *testing.T) {
	w := newWorld(t)
	full := t.TempDir()
	write(t, full+"/file", "x")
	live := w.mount()
	link := t.TempDir() + "/link"
	if err := os.Symlink(live.dir, link); err != nil {
		t.Fatal(err)
	}
	wrongSecret := w.storeOptions()
	wrongSecret.Credentials = credentials.NewStaticV4(w.env.AccessKey, "wrong", "")
	nobody := w.storeOptions()
	nobody.Endpoint = "http://127.0.0.1:1"
	nobody.RetryFor = 1
	for _, tt := range []struct {
		name string
		dir  string
		so   store.Options
		edit func(*Options)
		want error
	}{
		{"missing", t.TempDir() + "/none", w.storeOptions(), nil, ErrNoMountpoint},
		{"a file", full + "/file", w.storeOptions(), nil, ErrNotDirectory},
		{"not empty", full, w.storeOptions(), nil, ErrNotEmpty},
		{"mounted", live.dir, w.storeOptions(), nil, ErrMounted},
		{"mounted behind a link", link, w.storeOptions(), nil, ErrMounted},
		{"no bucket", t.TempDir(), w.storeOptions(), func(o *Options) { o.Bucket = "no-such-bucket" }, store.ErrNoBucket},
		{"no bucket, prefix", t.TempDir(), w.storeOptions(), func(o *Options) { o.Bucket, o.Prefix = "no-such-bucket", "p" }, store.ErrNoBucket},
		{"wrong secret", t.TempDir(), wrongSecret, nil, store.ErrBadCredentials},
		{"wrong secret, all buckets", t.TempDir(), wrongSecret, func(o *Options) { o.Bucket = "" }, store.ErrBadCredentials},
		{"nobody there", t.TempDir(), nobody, nil, store.ErrUnavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := w.options(tt.so)
			if tt.edit != nil {
				tt.edit(&o)
			}
			m, err := Mount(t.Context(), tt.dir, o)
			if err == nil {
				m.Unmount(t.Context())
				t.Fatal("mounted")
			}
			if !errors.Is(err, tt.want) {
				t.Errorf("error is %v, want %v", err, tt.want)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one sentence: %v", err)
			}
		})
	}
	for _, prefix := range []string{"a//b", "../x", "a/./b"} {
		o := w.options(w.storeOptions())
		o.Prefix = prefix
		if _, err := Mount(t.Context(), t.TempDir(), o); err == nil {
			t.Errorf("prefix %q is mounted", prefix)
		}
	}
}

// deadMountHelper is the environment variable that makes the test binary
// mount a bucket, as JSON says, and wait to be killed.
const deadMountHelper = "S3RDMAFS_TEST_DEAD_MOUNT"

type deadMount struct{ Endpoint, Region, AccessKey, SecretKey, Bucket, Dir, Spool string }

func serveDeadMount(config string) error {
	var c deadMount
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	st, err := store.Open(store.Options{
		Endpoint: c.Endpoint, Region: c.Region, Credentials: credentials.NewStaticV4(c.AccessKey, c.SecretKey, ""),
	})
	if err != nil {
		return err
	}
	ca, err := cache.New(cache.Options{Size: 1 << 20, Source: st})
	if err != nil {
		return err
	}
	m, err := Mount(context.Background(), c.Dir, Options{Store: st, Cache: ca, Bucket: c.Bucket, SpoolDir: c.Spool})
	if err != nil {
		return err
	}
	os.Stdout.WriteString("mounted\n")
	return m.Wait()
}

// Semantics "Errors and time": a dead mount at the mount point is cleared at
// start.
func TestDeadMount(t *testing.T) {
	w := newWorld(t)
	w.put("f", []byte("x"))
	dir := t.TempDir()
	config, err := json.Marshal(deadMount{w.env.Endpoint, w.env.Region, w.env.AccessKey, w.env.SecretKey, w.bucket, dir, t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), deadMountHelper+"="+string(config))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "mounted\n" {
		t.Fatalf("helper says %q, %v, %s", line, err, &stderr)
	}
	wantFile(t, dir+"/f", "x")
	cmd.Process.Kill()
	cmd.Wait()
	var fs unix.Statfs_t
	wantErrno(t, unix.Statfs(dir, &fs), syscall.ENOTCONN)
	if err := CheckMountpoint(dir); err != nil {
		t.Errorf("a dead mount is an obstacle: %v", err)
	}

	m, err := Mount(t.Context(), dir, w.options(w.storeOptions()))
	if err != nil {
		t.Fatal(err)
	}
	wantFile(t, filepath.Join(dir, "f"), "x")
	if err := m.Unmount(t.Context()); err != nil {
		t.Error(err)
	}
	if err := unix.Statfs(dir, &fs); err != nil {
		t.Errorf("the mount point after unmount: %v", err)
	}
}

// The statistics are an attribute of the root that is not listed.
func TestStatsXattr(t *testing.T) {
	w := newWorld(t)
	w.put("f", []byte("hello"))
	m := w.mount(func(o *Options) { o.ExtraStats = func() any { return map[string]int{"answer": 42} } })
	wantFile(t, m.path("f"), "hello")
	_, err := os.Lstat(m.path("f/below"))
	wantErrno(t, err, syscall.ENOTDIR)
	wantErrno(t, os.Chmod(m.path("none"), 0), syscall.ENOENT)
	buf := make([]byte, 64<<10)
	n, err := unix.Getxattr(m.dir, StatsXattr, buf)
	if err != nil {
		t.Fatal(err)
	}
	var st struct {
		PID       int
		Ops       map[string]int
		ReadBytes int `json:"read_bytes"`
		Answer    int
	}
	if err := json.Unmarshal(buf[:n], &st); err != nil {
		t.Fatal(err)
	}
	if st.PID != os.Getpid() || st.Ops["open"] == 0 || st.ReadBytes != 5 || st.Answer != 42 {
		t.Errorf("statistics are %s", buf[:n])
	}
	if n, err := unix.Listxattr(m.dir, buf); n != 0 || err != nil {
		t.Errorf("listed: %q, %v", buf[:max(n, 0)], err)
	}
	_, err = unix.Getxattr(m.path("f"), StatsXattr, buf)
	wantErrno(t, err, syscall.ENODATA)
	wantErrno(t, unix.Setxattr(m.dir, StatsXattr, nil, 0), syscall.EPERM)
}

// The mount is ended by umount(8) as well.
func TestForeignUnmount(t *testing.T) {
	w := newWorld(t)
	var refuse atomic.Bool
	m := w.mountFront(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPut || !refuse.Load() {
			return false
		}
		s3Error(rw, http.StatusForbidden, "AccessDenied")
		return true
	})
	write(t, m.path("f"), "x")
	refuse.Store(true)
	wantErrno(t, os.WriteFile(m.path("dirty"), []byte("y"), 0o644), syscall.EACCES)
	refuse.Store(false)
	if err := unix.Unmount(m.dir, 0); err != nil {
		t.Fatal(err)
	}
	if err := m.Wait(); err != nil {
		t.Errorf("wait: %v", err)
	}
	w.wantObject("f", "x")
	w.wantObject("dirty", "y")
}

func TestTuning(t *testing.T) {
	w := newWorld(t)
	m := w.mount()
	b, err := os.ReadFile(mountInfo)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if f[4] != m.dir {
			continue
		}
		for _, want := range []string{"nosuid", "nodev", "noatime", "fuse.s3rdmafs", "s3rdmafs:s3://" + w.bucket, "default_permissions", "max_read=1048576"} {
			if !strings.Contains(line, want) {
				t.Errorf("%q is not in %q", want, line)
			}
		}
		ra, err := os.ReadFile("/sys/class/bdi/" + f[2] + "/read_ahead_kb")
		if err != nil || strings.TrimSpace(string(ra)) != "8192" {
			t.Errorf("read-ahead is %q, %v", ra, err)
		}
		return
	}
	t.Error("the mount is not in the table")
}
