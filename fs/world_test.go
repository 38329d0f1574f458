package fs

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"s3rdmafs/cache"
	"s3rdmafs/internal/testenv"
	"s3rdmafs/store"
)

// world is a gateway with a bucket, and the mounts a test makes of it.
type world struct {
	t      *testing.T
	env    *testenv.Env
	s3     *minio.Client
	bucket string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	needFUSE(t)
	env := testenv.Start(t, testenv.Options{})
	return &world{t: t, env: env, s3: env.Minio(), bucket: env.NewBucket("")}
}

func needFUSE(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("needs /dev/fuse")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount without a helper program")
	}
}

// mounted is a mount with what it was made of.
type mounted struct {
	*Mounted
	dir   string
	cache *cache.Cache
	store *store.Store
	spool string
	t     *testing.T
	ended bool
}

// path is the path of a name in the mount.
func (m *mounted) path(name string) string { return filepath.Join(m.dir, name) }

// storeOptions are those of a client of the gateway that gives up soon.
func (w *world) storeOptions() store.Options {
	return store.Options{
		Endpoint:    w.env.Endpoint,
		Region:      w.env.Region,
		Credentials: credentials.NewStaticV4(w.env.AccessKey, w.env.SecretKey, ""),
		RetryFor:    2 * time.Second,
		Logger:      slog.New(slog.DiscardHandler),
	}
}

// mount mounts the bucket, as changed by edit. At the end of the test it
// unmounts, and everything pinned must be free again.
func (w *world) mount(edit ...func(*Options)) *mounted {
	w.t.Helper()
	return w.mountStore(w.storeOptions(), edit...)
}

func (w *world) mountStore(so store.Options, edit ...func(*Options)) *mounted {
	w.t.Helper()
	st, err := store.Open(so)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { st.Close() })
	c, err := cache.New(cache.Options{Size: 64 << 20, Source: st})
	if err != nil {
		w.t.Fatal(err)
	}
	m := &mounted{dir: w.t.TempDir(), cache: c, store: st, spool: w.t.TempDir(), t: w.t}
	o := Options{
		Store: st, Cache: c, Bucket: w.bucket, SpoolDir: m.spool, OpTimeout: 20 * time.Second,
		UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), AllowOther: true,
		Logger: slog.New(slog.NewTextHandler(w.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	for _, f := range edit {
		f(&o)
	}
	m.Mounted, err = Mount(w.t.Context(), m.dir, o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if !m.ended {
			if err := m.unmount(); err != nil {
				w.t.Errorf("unmount: %v", err)
			}
		}
	})
	return m
}

// unmount ends the mount and checks that nothing is held any more.
func (m *mounted) unmount() error {
	m.t.Helper()
	m.ended = true
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	err := m.Unmount(ctx)
	if n := m.Stats().OpenHandles; n != 0 {
		m.t.Errorf("%d handles are open after unmount", n)
	}
	if cerr := m.cache.Close(ctx); cerr != nil {
		m.t.Errorf("memory is held after unmount: %v", cerr)
	}
	return err
}

// put stores an object behind the mount's back, with metadata given as key, value, …
func (w *world) put(key string, data []byte, meta ...string) {
	w.t.Helper()
	o := minio.PutObjectOptions{UserMetadata: map[string]string{}, DisableContentSha256: true}
	for i := 0; i+1 < len(meta); i += 2 {
		o.UserMetadata[meta[i]] = meta[i+1]
	}
	_, err := w.s3.PutObject(w.t.Context(), w.bucket, key, bytes.NewReader(data), int64(len(data)), o)
	if err != nil {
		w.t.Fatalf("put %q: %v", key, err)
	}
}

// object is the content of a key, "" and false when there is none.
func (w *world) object(key string) (string, bool) {
	w.t.Helper()
	o, err := w.s3.GetObject(w.t.Context(), w.bucket, key, minio.GetObjectOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	defer o.Close()
	b, err := io.ReadAll(o)
	if minio.ToErrorResponse(err).Code == "NoSuchKey" {
		return "", false
	}
	if err != nil {
		w.t.Fatalf("get %q: %v", key, err)
	}
	return string(b), true
}

func (w *world) wantObject(key, want string) {
	w.t.Helper()
	got, ok := w.object(key)
	if !ok {
		w.t.Errorf("object %q is not there", key)
	} else if got != want {
		w.t.Errorf("object %q is %s, want %s", key, brief(got), brief(want))
	}
}

func (w *world) wantNoObject(key string) {
	w.t.Helper()
	if got, ok := w.object(key); ok {
		w.t.Errorf("object %q is there: %s", key, brief(got))
	}
}

// meta is the user metadata of a key.
func (w *world) meta(key string) map[string]string {
	w.t.Helper()
	info, err := w.s3.StatObject(w.t.Context(), w.bucket, key, minio.StatObjectOptions{})
	if err != nil {
		w.t.Fatalf("head %q: %v", key, err)
	}
	out := map[string]string{}
	for k, v := range info.UserMetadata {
		out[strings.ToLower(k)] = v
	}
	return out
}

func (w *world) remove(key string) {
	w.t.Helper()
	if err := w.s3.RemoveObject(w.t.Context(), w.bucket, key, minio.RemoveObjectOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// keys are all keys of the bucket.
func (w *world) keys() []string {
	w.t.Helper()
	var out []string
	for o := range w.s3.ListObjects(w.t.Context(), w.bucket, minio.ListObjectsOptions{Recursive: true}) {
		if o.Err != nil {
			w.t.Fatal(o.Err)
		}
		out = append(out, o.Key)
	}
	sort.Strings(out)
	return out
}

func brief(s string) string {
	if len(s) > 60 {
		return fmt.Sprintf("%q… (%d bytes)", s[:60], len(s))
	}
	return fmt.Sprintf("%q", s)
}

func write(t *testing.T, path, data string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
		t.Fatal(err)
	}
}

func wantFile(t *testing.T, path, want string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	} else if string(b) != want {
		t.Errorf("%s is %s, want %s", path, brief(string(b)), brief(want))
	}
}

func wantErrno(t *testing.T, err error, want syscall.Errno) {
	t.Helper()
	if err == nil || !errorsIs(err, want) {
		t.Errorf("error is %v, want %s", err, errnoName(want))
	}
}

func errorsIs(err error, want syscall.Errno) bool { return errnoFrom(err) == want }

// errnoFrom digs the errno out of an error of package os.
func errnoFrom(err error) syscall.Errno {
	for err != nil {
		if e, ok := err.(syscall.Errno); ok {
			return e
		}
		u, ok := err.(interface{ Unwrap() error })
		if !ok {
			return 0
		}
		err = u.Unwrap()
	}
	return 0
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := []string{}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func stat(t *testing.T, path string) syscall.Stat_t {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		t.Fatalf("lstat %s: %v", path, err)
	}
	return st
}

// pattern is n bytes that differ from place to place and from seed to seed.
func pattern(seed, n int) string {
	b := make([]byte, n)
	x := uint32(seed)*2654435761 + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return string(b)
}

// eventually waits until cond holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline:
			t.Fatalf("never came true: %s", what)
		case <-tick.C:
		}
	}
}

// putEncoded stores an object that claims to have a content encoding.
func (w *world) putEncoded(key, data, encoding string) {
	w.t.Helper()
	_, err := w.s3.PutObject(w.t.Context(), w.bucket, key, strings.NewReader(data), int64(len(data)),
		minio.PutObjectOptions{ContentEncoding: encoding, DisableContentSha256: true})
	if err != nil {
		w.t.Fatal(err)
	}
}
