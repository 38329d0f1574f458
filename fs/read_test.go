package fs

import (
	"bytes"
	"crypto/md5"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestReadFile(t *testing.T) {
	w := newWorld(t)
	data := pattern(1, 9<<20+12345)
	w.put("big", []byte(data))
	w.put("empty", nil)
	m := w.mount()
	wantFile(t, m.path("big"), data)
	wantFile(t, m.path("empty"), "")

	f, err := os.Open(m.path("big"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, off := range []int{9 << 20, 1, 4<<20 - 7, 8<<20 - 1, len(data) - 3, 5} {
		n := min(100_000, len(data)-off)
		b := make([]byte, n)
		if _, err := f.ReadAt(b, int64(off)); err != nil {
			t.Fatal(err)
		}
		if string(b) != data[off:off+n] {
			t.Errorf("wrong bytes at %d", off)
		}
	}
	if n, err := f.ReadAt(make([]byte, 10), int64(len(data))); n != 0 || err != io.EOF {
		t.Errorf("read at the end: %d, %v", n, err)
	}
}

// Semantics "Rename, remove, links, attributes": st_blocks, st_nlink, block
// size; reading changes no time.
func TestStat(t *testing.T) {
	w := newWorld(t)
	w.put("file", bytes.Repeat([]byte("x"), 1025))
	m := w.mount(func(o *Options) { o.FileMode, o.UID, o.GID = 0o640, 12, 34 })
	before := stat(t, m.path("file"))
	if before.Size != 1025 || before.Blocks != 3 || before.Nlink != 1 || before.Mode != syscall.S_IFREG|0o640 ||
		before.Uid != 12 || before.Gid != 34 || before.Blksize < 4096 {
		t.Errorf("stat says %+v", before)
	}
	if age := time.Since(time.Unix(before.Mtim.Sec, 0)); age < -time.Minute || age > time.Minute {
		t.Errorf("mtime is %v off", age)
	}
	if _, err := os.ReadFile(m.path("file")); err != nil {
		t.Fatal(err)
	}
	if after := stat(t, m.path("file")); after != before {
		t.Errorf("reading changed %+v to %+v", before, after)
	}
}

// Semantics "Rename, remove, links, attributes": statfs is large, finite, and
// answered from memory.
func TestStatfs(t *testing.T) {
	w := newWorld(t)
	w.put("d/f", nil)
	m := w.mount()
	d, err := os.Open(m.path("d"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	resume := w.stop()
	defer resume()
	if st, err := d.Stat(); err != nil || !st.IsDir() {
		t.Errorf("fstat of a directory: %v, %v", st, err)
	}
	if stat(t, m.dir).Mode&syscall.S_IFMT != syscall.S_IFDIR {
		t.Error("the mount point is no directory")
	}
	var st unix.Statfs_t
	if err := unix.Statfs(m.dir, &st); err != nil {
		t.Fatal(err)
	}
	free := st.Bavail * uint64(st.Frsize)
	if free < 1<<50 || free > 1<<62 || st.Namelen != 255 || st.Ffree == 0 {
		t.Errorf("statfs says %+v", st)
	}
}

// Semantics "Reading": one open handle reads one version: all old bytes, or
// ESTALE; a new open sees the newest.
func TestOverwriteWhileReading(t *testing.T) {
	w := newWorld(t)
	old, fresh := pattern(1, 6<<20), pattern(2, 7<<20)
	w.put("f", []byte(old))
	m := w.mount()
	f, err := os.Open(m.path("f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	head := make([]byte, 64<<10)
	if _, err := io.ReadFull(f, head); err != nil {
		t.Fatal(err)
	}
	w.put("f", []byte(fresh))

	// By another handle first, so that its pages could get mixed in.
	wantFile(t, m.path("f"), fresh)
	rest, err := io.ReadAll(f)
	if err != nil {
		wantErrno(t, err, syscall.ESTALE)
	} else if len(head)+len(rest) != len(old) {
		t.Errorf("read %d bytes, the old version has %d", len(head)+len(rest), len(old))
	}
	if got := string(head) + string(rest); !strings.HasPrefix(old, got) {
		t.Error("the old handle read bytes that are not of the old version")
	}
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if st.Size() != int64(len(old)) {
		t.Errorf("the old handle has size %d, want %d", st.Size(), len(old))
	}
}

// Semantics "Reading": size, mtime and content of a new version come together,
// though the kernel remembers the old size.
func TestOverwriteBetweenOpens(t *testing.T) {
	w := newWorld(t)
	m := w.mount()
	for i := range 10 {
		data := pattern(i, 1000+100*(i*7%10))
		w.put("f", []byte(data))
		wantFile(t, m.path("f"), data)
	}
	w.remove("f")
	if _, err := os.ReadFile(m.path("f")); !os.IsNotExist(err) {
		t.Errorf("read of a removed object: %v", err)
	}
	w.put("f/now/a/directory", nil)
	eventually(t, "the directory shows", func() bool {
		st, err := os.Lstat(m.path("f"))
		return err == nil && st.IsDir()
	})
}

// Semantics "Reading": a rewritten file of equal length is never served from
// pages of the old one.
func TestSameSizeOverwrite(t *testing.T) {
	w := newWorld(t)
	m := w.mount()
	for i := range 10 {
		data := pattern(i, 300_000)
		w.put("f", []byte(data))
		wantFile(t, m.path("f"), data)
	}
}

// Semantics "Reading": a local change makes no pages of an older version pass
// for the new one.
func TestChangeAfterOverwrite(t *testing.T) {
	w := newWorld(t)
	m := w.mount()
	for i, size := range []int{300_000, 500_000} {
		for what, change := range map[string]func(path string) error{
			"chmod":    func(path string) error { return os.Chmod(path, 0o600) },
			"truncate": func(path string) error { return os.Truncate(path, 290_000) },
			"extend":   func(path string) error { return os.Truncate(path, 600_000) },
			"rename": func(path string) error {
				if err := os.Rename(path, path+".moved"); err != nil {
					return err
				}
				return os.Rename(path+".moved", path)
			},
		} {
			name := fmt.Sprint(what, i)
			old, fresh := pattern(1, 300_000), pattern(2, size)
			w.put(name, []byte(old))
			wantFile(t, m.path(name), old)
			w.put(name, []byte(fresh))
			eventually(t, "the new version shows", func() bool {
				// Of equal size it does not show in stat: look past the kernel's memory.
				m.fs.mu.Lock()
				f, ok := m.fs.root.children[name].(*file)
				m.fs.mu.Unlock()
				stat(t, m.path(name))
				return !ok || f.etag() == etagOf(fresh)
			})
			if err := change(m.path(name)); err != nil {
				t.Fatal(what, err)
			}
			want, _ := w.object(name)
			if n := min(len(want), size); want[:n] != fresh[:n] {
				t.Errorf("%s: the object is not of the new version", what)
			}
			wantFile(t, m.path(name), want)
		}
	}
}

// etag is the version the mount knows of.
func (f *file) etag() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.info.ETag
}

// etagOf is what the gateway gives an object stored by one request.
func etagOf(data string) string { return fmt.Sprintf("%x", md5.Sum([]byte(data))) }

// Semantics "Reading": an old version that comes back is whole, though the
// kernel cut its pages when it learned of a shorter one.
func TestOldVersionReturns(t *testing.T) {
	w := newWorld(t)
	long, short := pattern(1, 6000), pattern(2, 100)
	w.put("f", []byte(long))
	m := w.mount()
	for range 3 {
		for _, data := range []string{long, short} {
			w.put("f", []byte(data))
			eventually(t, "the new size shows", func() bool { return stat(t, m.path("f")).Size == int64(len(data)) })
		}
		w.put("f", []byte(long))
		wantFile(t, m.path("f"), long)
	}
}

// Semantics "Reading": raw stored bytes, no transparent decompression.
func TestContentEncoding(t *testing.T) {
	w := newWorld(t)
	m := w.mount()
	w.putEncoded("f.gz", "not really gzip", "gzip")
	wantFile(t, m.path("f.gz"), "not really gzip")
}

// Semantics "Rename, remove, links, attributes": unlink and overwrite while
// open keep old handles readable.
func TestUnlinkWhileOpen(t *testing.T) {
	w := newWorld(t)
	data := pattern(3, 5<<20)
	w.put("f", []byte(data))
	w.put("g", []byte(data))
	m := w.mount()
	for name, replace := range map[string]func() error{
		"f": func() error { return os.Remove(m.path("f")) },
		"g": func() error {
			write(t, m.path("new"), "new")
			return os.Rename(m.path("new"), m.path("g"))
		},
	} {
		f, err := os.Open(m.path(name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := replace(); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(f)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if string(got) != data {
			t.Errorf("%s: wrong bytes", name)
		}
	}
	w.wantNoObject("f")
	w.wantObject("g", "new")
}

// Semantics "Errors and time": with the server gone a reader gets an error
// within its deadline, nothing hangs, unmount works, and after a restart reads
// work again.
func TestServerGone(t *testing.T) {
	w := newWorld(t)
	data := pattern(4, 30<<20)
	w.put("f", []byte(data))
	w.put("d/x", nil)
	m := w.mount(func(o *Options) { o.OpTimeout = 3 * time.Second })
	f, err := os.Open(m.path("f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.ReadFull(f, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	w.env.Kill()
	_, err = io.ReadAll(f)
	wantErrno(t, err, syscall.EIO)
	_, err = os.ReadDir(m.path("d"))
	wantErrno(t, err, syscall.EIO)
	if _, err := os.Lstat(m.path("never-seen")); os.IsNotExist(err) || err == nil {
		t.Errorf("lookup without a server: %v", err)
	}
	w.env.Restart()
	wantFile(t, m.path("f"), data)
	if _, err := os.Lstat(m.path("d/x")); err != nil {
		t.Error(err)
	}
	w.env.Kill()
	f.Close()
	if err := m.unmount(); err != nil {
		t.Errorf("unmount without a server: %v", err)
	}
}

// Semantics "Errors and time": a negative answer lives at most a second and
// falls on a local create.
func TestNegativeLookups(t *testing.T) {
	w := newWorld(t)
	m := w.mount(func(o *Options) { o.NegativeTTL = time.Hour }) // is cut to a second
	if _, err := os.Lstat(m.path("x")); !os.IsNotExist(err) {
		t.Fatal(err)
	}
	write(t, m.path("x"), "1")
	wantFile(t, m.path("x"), "1")
	if _, err := os.Lstat(m.path("y")); !os.IsNotExist(err) {
		t.Fatal(err)
	}
	w.put("y", []byte("2"))
	eventually(t, "the object of another client shows", func() bool {
		_, err := os.Lstat(m.path("y"))
		return err == nil
	})
}
