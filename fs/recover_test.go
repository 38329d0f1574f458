package fs

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"s3rdmafs/cache"
	"s3rdmafs/internal/faultproxy"
	"s3rdmafs/spool"
	"s3rdmafs/store"
)

// victim is a mount in a process of its own, to be killed.
type victim struct {
	dir  string
	cmd  *exec.Cmd
	done chan struct{}
}

func (v *victim) path(name string) string { return filepath.Join(v.dir, name) }

// kill ends the process with SIGKILL and clears the dead mount away.
func (v *victim) kill(t fataler) {
	t.Helper()
	if err := v.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatalf("kill: %v", err)
	}
	<-v.done
	for unix.Unmount(v.dir, unix.MNT_DETACH) == nil {
	}
}

type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// victim mounts the bucket as seen at endpoint.
func (w *world) victim(endpoint, spoolDir string) *victim {
	w.t.Helper()
	v := &victim{dir: w.t.TempDir(), done: make(chan struct{})}
	config, err := json.Marshal(deadMount{endpoint, w.env.Region, w.env.AccessKey, w.env.SecretKey, w.bucket, v.dir, spoolDir})
	if err != nil {
		w.t.Fatal(err)
	}
	v.cmd = exec.Command("/proc/self/exe")
	v.cmd.Env = append(os.Environ(), deadMountHelper+"="+string(config))
	var stderr bytes.Buffer
	v.cmd.Stderr = &stderr
	stdout, err := v.cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := v.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	go func() {
		v.cmd.Wait()
		close(v.done)
	}()
	w.t.Cleanup(func() { v.kill(w.t) })
	if err != nil || line != "mounted\n" {
		<-v.done
		w.t.Fatalf("helper says %q, %v, %s", line, err, &stderr)
	}
	return v
}

// leftovers are those in a spool directory, by key.
func leftovers(t *testing.T, dir string) map[string]*spool.Leftover {
	t.Helper()
	ids, err := spool.Identities(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*spool.Leftover{}
	for _, id := range ids {
		sp, err := spool.Adopt(dir, id)
		if err != nil {
			t.Fatal(err)
		}
		defer sp.Close()
		for _, l := range sp.Leftovers() {
			if l.Damage != nil {
				t.Errorf("damaged: %v", l.Damage)
			}
			out[l.Record.Key] = l
		}
	}
	return out
}

func leftContent(t *testing.T, l *spool.Leftover) string {
	t.Helper()
	f, err := l.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func (w *world) wantNoUploads() {
	w.t.Helper()
	for u := range w.s3.ListIncompleteUploads(w.t.Context(), w.bucket, "", true) {
		w.t.Errorf("unfinished upload of %q: %v", u.Key, u.Err)
	}
}

func (w *world) wantKeys(want ...string) {
	w.t.Helper()
	if got := w.keys(); !slices.Equal(got, want) {
		w.t.Errorf("keys are %q, want %q", got, want)
	}
}

// Semantics "Writing": what was acknowledged is in the bucket after a kill, and
// what was only written is there after the next mount.
func TestKillWhileWriting(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	v := w.victim(w.env.Endpoint, dir)
	old := pattern(1, 300_000)
	for _, key := range []string{"overwritten", "cut", "unlinked", "untouched", "target"} {
		w.put(key, []byte(old), "color", "red")
	}
	open := func(name string, flags int) *os.File {
		t.Helper()
		f, err := os.OpenFile(v.path(name), os.O_RDWR|flags, 0o640)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	writeAt := func(f *os.File, data string, off int64) {
		t.Helper()
		if _, err := f.WriteAt([]byte(data), off); err != nil {
			t.Fatal(err)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}

	write(t, v.path("closed"), "closed")
	synced := open("synced", os.O_CREATE)
	writeAt(synced, "synced", 0)
	must(synced.Sync())
	w.wantObject("synced", "synced")
	writeAt(synced, " and more", 6)
	writeAt(open("overwritten", 0), "NEW", 1000)
	must(open("cut", 0).Truncate(1000))
	big := pattern(2, 20<<20+5)
	writeAt(open("big", os.O_CREATE|os.O_EXCL), big, 0)
	must(os.Mkdir(v.path("d"), 0o755))
	writeAt(open("d/before", os.O_CREATE), "renamed", 0)
	must(os.Rename(v.path("d/before"), v.path("d/after")))
	must(os.Rename(v.path("d"), v.path("moved")))
	writeAt(open("over", os.O_CREATE), "renamed over", 0)
	must(os.Rename(v.path("over"), v.path("target")))
	writeAt(open("unlinked", 0), "x", 0)
	must(os.Remove(v.path("unlinked")))
	gone := open("gone", os.O_CREATE)
	writeAt(gone, "x", 0)
	must(os.Remove(v.path("gone")))
	writeAt(gone, "y", 1)
	changed := open("changed", os.O_CREATE)
	writeAt(changed, "mode", 0)
	must(changed.Chmod(0o600))

	v.kill(t)
	w.wantObject("closed", "closed")
	w.wantObject("overwritten", old)
	m := w.mount(func(o *Options) { o.SpoolDir = dir })
	for key, want := range map[string]string{
		"closed": "closed", "synced": "synced and more", "overwritten": old[:1000] + "NEW" + old[1003:], "cut": old[:1000],
		"untouched": old, "big": big, "moved/after": "renamed", "target": "renamed over", "changed": "mode",
	} {
		w.wantObject(key, want)
		wantFile(t, m.path(key), want)
	}
	w.wantKeys("big", "changed", "closed", "cut", "moved/", "moved/after", "overwritten", "synced", "target", "untouched")
	w.wantNoUploads()
	if st := stat(t, m.path("changed")); st.Mode&0o777 != 0o600 {
		t.Errorf("mode %o", st.Mode)
	}
	if got := w.meta("overwritten")["color"]; got != "red" {
		t.Errorf("metadata is %q", got)
	}
	if r := m.Stats().Recovery; r != (Recovery{Replayed: 7}) {
		t.Errorf("recovery: %+v", r)
	}
	if err := m.unmount(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("the spool holds %v, %v", left, err)
	}
}

// Semantics "Writing": killed at any point of an upload, the file is stored
// once, whole, by the next mount, and no multipart upload stays.
func TestKillDuringUpload(t *testing.T) {
	w := newWorld(t)
	has := func(names ...string) func(*http.Request) bool {
		return func(r *http.Request) bool {
			for _, n := range names {
				if !r.URL.Query().Has(n) {
					return false
				}
			}
			return true
		}
	}
	done := make(chan struct{})
	silent := func(x *faultproxy.Exchange) {
		if resp := x.Forward(); resp != nil {
			resp.Body.Close()
		}
		done <- struct{}{}
		faultproxy.BlackHole()(x)
	}
	deaf := func(x *faultproxy.Exchange) {
		done <- struct{}{}
		faultproxy.BlackHole()(x)
	}
	small, large := pattern(3, 100_000), pattern(4, 40<<20)
	replayed, stored := Recovery{Replayed: 1}, Recovery{AlreadyStored: 1}
	for _, tt := range []struct {
		name string
		data string
		rule faultproxy.Rule
		want Recovery
	}{
		{"before put", small, faultproxy.Rule{Method: "PUT", Fault: deaf, Times: 1}, replayed},
		{"after put", small, faultproxy.Rule{Method: "PUT", Fault: silent, Times: 1}, stored},
		{"before begin", large, faultproxy.Rule{Method: "POST", Match: has("uploads"), Fault: deaf, Times: 1}, replayed},
		{"after begin", large, faultproxy.Rule{Method: "POST", Match: has("uploads"), Fault: silent, Times: 1}, Recovery{Replayed: 1, AbortedUploads: 1}},
		{"before a part", large, faultproxy.Rule{Method: "PUT", Skip: 1, Match: has("partNumber"), Fault: deaf, Times: 1}, Recovery{Replayed: 1, AbortedUploads: 1}},
		{"before complete", large, faultproxy.Rule{Method: "POST", Match: has("uploadId"), Fault: deaf, Times: 1}, Recovery{Replayed: 1, AbortedUploads: 1}},
		{"after complete", large, faultproxy.Rule{Method: "POST", Match: has("uploadId"), Fault: silent, Times: 1}, Recovery{AlreadyStored: 1, AbortedUploads: 1}},
	} {
		for _, base := range []string{"", "old object"} {
			t.Run(fmt.Sprintf("%s, base %q", tt.name, base), func(t *testing.T) {
				w := &world{t: t, env: w.env, s3: w.s3, bucket: w.env.NewBucket("")}
				if base != "" {
					w.put("f", []byte(base))
				}
				p := faultproxy.Start(t, w.env.Endpoint)
				dir := t.TempDir()
				v := w.victim(p.URL, dir)
				tt.rule.Key = "f"
				p.Add(tt.rule)
				f, err := os.OpenFile(v.path("f"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := f.WriteString(tt.data); err != nil {
					t.Fatal(err)
				}
				closed := make(chan error, 1)
				go func() { closed <- f.Close() }()
				<-done
				v.kill(t)
				if err := <-closed; err == nil {
					t.Error("close succeeds")
				}
				if got, ok := w.object("f"); ok && got != base && got != tt.data {
					t.Errorf("half an object: %s", brief(got))
				}
				p.Clear()
				so := w.storeOptions()
				so.Endpoint = p.URL
				m := w.mountStore(so, func(o *Options) { o.SpoolDir = dir })
				w.wantObject("f", tt.data)
				w.wantKeys("f")
				w.wantNoUploads()
				if r := m.Stats().Recovery; r != tt.want {
					t.Errorf("recovery: %+v, want %+v", r, tt.want)
				}
				if err := m.unmount(); err != nil {
					t.Error(err)
				}
				if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
					t.Errorf("the spool holds %v, %v", left, err)
				}
			})
		}
	}
}

// As TestKillDuringUpload, with a server that stands still and goes on later.
func TestKillWithServerStopped(t *testing.T) {
	w := newWorld(t)
	for _, size := range []int{100_000, 40 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			w := &world{t: t, env: w.env, s3: w.s3, bucket: w.env.NewBucket("")}
			dir := t.TempDir()
			v := w.victim(w.env.Endpoint, dir)
			data := pattern(5, size)
			f, err := os.Create(v.path("f"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteString(data); err != nil {
				t.Fatal(err)
			}
			resume := w.stop()
			defer resume()
			eventually(t, "the server stands still", func() bool { return isStopped(t, w.env.PID()) })
			closed := make(chan error, 1)
			go func() { closed <- f.Close() }()
			eventually(t, "a request waits for the server", func() bool { return waitsFor(t, w.env.Endpoint) })
			v.kill(t)
			resume()
			<-closed
			m := w.mount(func(o *Options) { o.SpoolDir = dir })
			w.wantObject("f", data)
			w.wantKeys("f")
			w.wantNoUploads()
			if r := m.Stats().Recovery; r.Replayed+r.AlreadyStored != 1 {
				t.Errorf("recovery: %+v", r)
			}
		})
	}
}

// isStopped reports whether every thread of a process is.
func isStopped(t *testing.T, pid int) bool {
	t.Helper()
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(stats) == 0 {
		t.Fatalf("threads of %d: %q, %v", pid, stats, err)
	}
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			return false // it has just ended
		}
		// The name before the state may have spaces.
		if _, state, ok := strings.Cut(string(b), ") "); !ok || state[0] != 'T' {
			return false
		}
	}
	return true
}

// waitsFor reports whether the server at endpoint has bytes to read.
func waitsFor(t *testing.T, endpoint string) bool {
	t.Helper()
	u, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		local, queues := f[1], strings.Split(f[4], ":")
		if strings.HasSuffix(local, fmt.Sprintf(":%04X", port)) && f[3] == "01" && queues[1] != "00000000" {
			return true
		}
	}
	return false
}

// What cannot be stored without destroying something stays in the spool, at
// every mount, until somebody takes it out.
func TestReplayConflicts(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	w.put("changed", []byte("base"))
	w.put("removed", []byte("base"))
	w.put("unchanged", []byte("base"))
	v := w.victim(w.env.Endpoint, dir)
	for _, name := range []string{"changed", "removed", "unchanged", "new"} {
		f, err := os.OpenFile(v.path(name), os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteAt([]byte(name), 0); err != nil {
			t.Fatal(err)
		}
	}
	v.kill(t)
	w.put("changed", []byte("somebody else's"))
	w.put("new", []byte("somebody else's"))
	w.remove("removed")

	m := w.mount(func(o *Options) { o.SpoolDir, o.NoReplay = dir, true })
	if r := m.Stats().Recovery; r != (Recovery{Conflicts: 3, Kept: 1}) {
		t.Errorf("recovery without replay: %+v", r)
	}
	w.wantObject("unchanged", "base")
	if err := m.unmount(); err != nil {
		t.Error(err)
	}
	for range 2 {
		m := w.mount(func(o *Options) { o.SpoolDir = dir })
		if r := m.Stats().Recovery; r.Conflicts != 3 || r.Kept != 0 {
			t.Errorf("recovery: %+v", r)
		}
		if err := m.unmount(); err != nil {
			t.Error(err)
		}
	}
	w.wantObject("changed", "somebody else's")
	w.wantObject("new", "somebody else's")
	w.wantObject("unchanged", "unchanged")
	w.wantNoObject("removed")
	left := leftovers(t, dir)
	for _, name := range []string{"changed", "removed", "new"} {
		l, ok := left[name]
		if !ok || leftContent(t, l) != name || !strings.Contains(l.Record.Cause, errConflict.Error()) {
			t.Errorf("%s is kept as %+v", name, l)
		}
	}
	if len(left) != 3 {
		t.Errorf("%d leftovers", len(left))
	}
}

// Content that a power loss may have torn is not stored.
func TestReplayAfterPowerLoss(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	v := w.victim(w.env.Endpoint, dir)
	f, err := os.Create(v.path("f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("content"); err != nil {
		t.Fatal(err)
	}
	v.kill(t)
	sp, err := spool.Adopt(dir, spool.Identity{Endpoint: w.env.Endpoint, Bucket: w.bucket})
	if err != nil {
		t.Fatal(err)
	}
	defer sp.Close()
	all := sp.Leftovers()
	if len(all) != 1 {
		t.Fatalf("%d leftovers", len(all))
	}
	boot := all[0].Record.Boot
	for _, want := range []Outcome{Kept, Replayed} {
		all[0].Record.Boot = "another"
		if want == Replayed {
			all[0].Record.Boot = boot
		}
		err := Recover(t.Context(), sp, w.options(w.storeOptions()), func(_ *spool.Leftover, got Outcome, err error) {
			if got != want {
				t.Errorf("%v: %v, want %v", got, err, want)
			}
		})
		if err != nil {
			t.Error(err)
		}
		if _, ok := w.object("f"); ok != (want == Replayed) {
			t.Errorf("stored: %v", ok)
		}
	}
}

// A write beyond the spool's limit is ENOSPC, and what was taken is free again.
func TestSpoolLimit(t *testing.T) {
	w := newWorld(t)
	w.put("large", make([]byte, 3<<20))
	m := w.mount(func(o *Options) { o.SpoolSize = 2 << 20 })
	chunk := []byte(pattern(1, 1<<20))
	f, err := os.Create(m.path("f"))
	if err != nil {
		t.Fatal(err)
	}
	var werr error
	n := 0
	for ; werr == nil && n < 4; n++ {
		_, werr = f.WriteAt(chunk, int64(n)<<20)
		if werr == nil {
			werr = f.Sync()
		}
	}
	wantErrno(t, werr, syscall.ENOSPC)
	if err := f.Truncate(1 << 20); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	w.wantObject("f", string(chunk))

	l, err := os.OpenFile(m.path("large"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.WriteAt([]byte("x"), 0)
	if err == nil {
		err = l.Sync()
	}
	wantErrno(t, err, syscall.ENOSPC)
	if err := l.Close(); err != nil {
		t.Errorf("close of a file that was not changed: %v", err)
	}
	w.wantObject("large", string(make([]byte, 3<<20)))
	eventually(t, "the spool is free", func() bool { return m.Stats().SpoolBytes == 0 })
	write(t, m.path("again"), string(chunk))
	w.wantObject("again", string(chunk))
}

// Random changes with kills between: what the mount showed last is in the
// bucket after the next one.
func TestKillModel(t *testing.T) {
	w := newWorld(t)
	limit := 6
	if os.Getenv("S3RDMAFS_LONG") != "" {
		limit = 100
	}
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		if n++; n > limit {
			return
		}
		w := &world{t: w.t, env: w.env, s3: w.s3, bucket: w.env.NewBucket("")}
		dir := w.t.TempDir()
		want := map[string]string{}
		for range 2 {
			v := w.victim(w.env.Endpoint, dir)
			open := map[string]*os.File{}
			names := []string{"a", "b", "c"}
			for range rapid.IntRange(1, 15).Draw(t, "steps") {
				name := rapid.SampledFrom(names).Draw(t, "name")
				f := open[name]
				_, there := want[name]
				switch op := rapid.SampledFrom([]string{"write", "write", "truncate", "sync", "close", "rename", "unlink"}).Draw(t, "op"); {
				case op == "write":
					if f == nil {
						var err error
						if f, err = os.OpenFile(v.path(name), os.O_RDWR|os.O_CREATE, 0o644); err != nil {
							t.Fatal(err)
						}
						open[name] = f
					}
					off := rapid.IntRange(0, 100_000).Draw(t, "off")
					data := pattern(rapid.IntRange(0, 100).Draw(t, "seed"), rapid.IntRange(1, 50_000).Draw(t, "len"))
					if _, err := f.WriteAt([]byte(data), int64(off)); err != nil {
						t.Fatal(err)
					}
					b := []byte(want[name])
					b = append(b, make([]byte, max(0, off+len(data)-len(b)))...)
					copy(b[off:], data)
					want[name] = string(b)
				case !there:
				case op == "truncate":
					size := rapid.IntRange(0, 150_000).Draw(t, "size")
					if err := os.Truncate(v.path(name), int64(size)); err != nil {
						t.Fatal(err)
					}
					want[name] = string(append([]byte(want[name]), make([]byte, max(0, size-len(want[name])))...)[:size])
				case op == "rename":
					to := rapid.SampledFrom(names).Draw(t, "to")
					if to == name {
						continue
					}
					if err := os.Rename(v.path(name), v.path(to)); err != nil {
						t.Fatal(err)
					}
					if old := open[to]; old != nil {
						old.Close()
					}
					want[to], open[to] = want[name], f
					delete(want, name)
					delete(open, name)
				case op == "unlink":
					if err := os.Remove(v.path(name)); err != nil {
						t.Fatal(err)
					}
					delete(want, name)
					if f != nil {
						f.Close()
						delete(open, name)
					}
				case f == nil:
				case op == "sync":
					if err := f.Sync(); err != nil {
						t.Fatal(err)
					}
				case op == "close":
					if err := f.Close(); err != nil {
						t.Fatal(err)
					}
					delete(open, name)
				}
			}
			v.kill(t)
			for _, f := range open {
				f.Close()
			}
			w.recoverAll(t, dir)
			got := map[string]string{}
			for _, key := range w.keys() {
				got[key], _ = w.object(key)
			}
			for key := range want {
				if got[key] != want[key] {
					t.Fatalf("%s is %s, want %s", key, brief(got[key]), brief(want[key]))
				}
			}
			if len(got) != len(want) {
				t.Fatalf("keys are %q", w.keys())
			}
		}
	})
}

// recoverAll stores everything a killed mount left, without a mount.
func (w *world) recoverAll(t *rapid.T, dir string) {
	t.Helper()
	st, err := store.Open(w.storeOptions())
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	c, err := cache.New(cache.Options{Size: 64 << 20, Source: st})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	sp, err := spool.Adopt(dir, spool.Identity{Endpoint: w.env.Endpoint, Bucket: w.bucket})
	if err != nil {
		t.Fatal(err)
	}
	defer sp.Close()
	err = Recover(context.Background(), sp, Options{Store: st, Cache: c, Bucket: w.bucket}, func(l *spool.Leftover, out Outcome, err error) {
		if out != Replayed {
			t.Errorf("%s: %v, %v", l.Record.Key, out, err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}
