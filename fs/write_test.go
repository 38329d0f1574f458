package fs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"s3rdmafs/spool"
	"s3rdmafs/store"
)

// Semantics "Writing": no placeholder; the key appears complete when close
// returns, also an empty one.
func TestCloseStores(t *testing.T) {
	w := newWorld(t)
	m := w.mount()
	for name, data := range map[string]string{"empty": "", "small": "hello", "odd": pattern(1, 3_000_001)} {
		f, err := os.Create(m.path(name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(data); err != nil {
			t.Fatal(err)
		}
		w.wantNoObject(name)
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		w.wantObject(name, data)
		wantFile(t, m.path(name), data)
	}
	if st := m.Stats(); st.DirtyFiles != 0 || st.DirtyBytes != 0 {
		t.Errorf("dirty after close: %+v", st)
	}
}

// Semantics "Writing": large files leave in parts, in one object.
func TestMultipart(t *testing.T) {
	w := newWorld(t)
	m := w.mount()
	data := pattern(2, 45<<20+77)
	write(t, m.path("big"), data)
	w.wantObject("big", data)
	wantFile(t, m.path("big"), data)

	// One byte in the middle.
	f, err := os.OpenFile(m.path("big"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("!"), 20<<20); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	w.wantObject("big", data[:20<<20]+"!"+data[20<<20+1:])
	ups, err := m.store.Uploads(t.Context(), w.bucket, "")
	if err != nil || len(ups) != 0 {
		t.Errorf("unfinished uploads: %v, %v", ups, err)
	}
}

// Semantics "Writing": parts grow so that 5 TiB fit in 10,000.
func TestPartSize(t *testing.T) {
	for _, size := range []int64{1, singlePut + 1, 100 << 30, 156 << 30, 157 << 30, store.MaxObjectSize} {
		n := partSize(size, 0)
		if parts := (size + n - 1) / n; parts > store.MaxParts || n > store.MaxPartSize || n < store.MinPartSize {
			t.Errorf("%d bytes in %d parts of %d", size, parts, n)
		}
	}
	if n := partSize(1<<30, 8<<20); n != 8<<20 {
		t.Errorf("parts of %d bytes where RDMA takes 8 MiB", n)
	}
}

// Semantics "Writing": own unflushed writes are visible to every handle at
// once, and their size with them.
func TestTwoHandles(t *testing.T) {
	w := newWorld(t)
	w.put("f", []byte("0123456789"))
	m := w.mount()
	a, err := os.OpenFile(m.path("f"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := os.OpenFile(m.path("f"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	r, err := os.Open(m.path("f"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	wantAll := func(want string) {
		t.Helper()
		for _, f := range []*os.File{a, b, r} {
			got := make([]byte, 100)
			n, err := f.ReadAt(got, 0)
			if err != io.EOF || string(got[:n]) != want {
				t.Errorf("read %q, %v, want %q", got[:n], err, want)
			}
			if st, err := f.Stat(); err != nil || st.Size() != int64(len(want)) {
				t.Errorf("stat: %v, %v", st, err)
			}
		}
		wantFile(t, m.path("f"), want)
		if st := stat(t, m.path("f")); st.Size != int64(len(want)) {
			t.Errorf("size %d, want %d", st.Size, len(want))
		}
	}
	wantAll("0123456789")
	if _, err := a.WriteAt([]byte("AB"), 2); err != nil {
		t.Fatal(err)
	}
	wantAll("01AB456789")
	if _, err := b.WriteAt([]byte("xyz"), 9); err != nil {
		t.Fatal(err)
	}
	wantAll("01AB45678xyz")
	if err := a.Truncate(3); err != nil {
		t.Fatal(err)
	}
	wantAll("01A")
	w.wantObject("f", "0123456789")
	if err := b.Sync(); err != nil {
		t.Fatal(err)
	}
	w.wantObject("f", "01A")
	if err := b.Truncate(5); err != nil {
		t.Fatal(err)
	}
	wantAll("01A\x00\x00")
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	w.wantObject("f", "01A\x00\x00")
}

// Semantics "Writing": FLUSH may come several times and stores only what
// changed.
func TestFlushOnlyWhenDirty(t *testing.T) {
	w := newWorld(t)
	m := w.mount()
	f, err := os.Create(m.path("f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	uploads := func() uint64 { return m.Stats().Uploads }
	if _, err := f.WriteString("one"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		fd, err := unix.Dup(int(f.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Close(fd); err != nil {
			t.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	if n := uploads(); n != 1 {
		t.Errorf("%d uploads of one change", n)
	}
	if _, err := f.WriteString(" two"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if n := uploads(); n != 2 {
		t.Errorf("%d uploads of two changes", n)
	}
	w.wantObject("f", "one two")
}

func TestAppend(t *testing.T) {
	w := newWorld(t)
	w.put("log", []byte("a"))
	m := w.mount()
	for _, s := range []string{"b", "c"} {
		f, err := os.OpenFile(m.path("log"), os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(s); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	w.wantObject("log", "abc")
}

// Semantics "Writing": truncate up is sparse and cheap, by path as well.
func TestTruncate(t *testing.T) {
	w := newWorld(t)
	w.put("f", []byte("0123456789"))
	m := w.mount()
	if err := os.Truncate(m.path("f"), 4); err != nil {
		t.Fatal(err)
	}
	w.wantObject("f", "0123")
	if err := os.Truncate(m.path("f"), 6); err != nil {
		t.Fatal(err)
	}
	w.wantObject("f", "0123\x00\x00")
	if err := os.Truncate(m.path("f"), 0); err != nil {
		t.Fatal(err)
	}
	w.wantObject("f", "")
	write(t, m.path("f"), "again")
	w.wantObject("f", "again")

	f, err := os.Create(m.path("sparse"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(1 << 40); err != nil {
		t.Fatal(err)
	}
	if st := stat(t, m.path("sparse")); st.Size != 1<<40 {
		t.Errorf("size %d", st.Size)
	}
	if err := f.Truncate(10); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	w.wantObject("sparse", strings.Repeat("\x00", 10))
}

// Semantics "Writing": fallocate with mode 0 and KEEP_SIZE; other modes are
// refused.
func TestFallocate(t *testing.T) {
	w := newWorld(t)
	m := w.mount()
	f, err := os.Create(m.path("f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd := int(f.Fd())
	if err := unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, 100); err != nil {
		t.Error(err)
	}
	if st := stat(t, m.path("f")); st.Size != 0 {
		t.Errorf("size %d after KEEP_SIZE", st.Size)
	}
	if err := unix.Fallocate(fd, 0, 10, 90); err != nil {
		t.Error(err)
	}
	if st := stat(t, m.path("f")); st.Size != 100 {
		t.Errorf("size %d, want 100", st.Size)
	}
	wantErrno(t, unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 10), syscall.EOPNOTSUPP)
}

// Semantics "Writing": copy_file_range works, by the kernel's own means.
func TestCopyFileRange(t *testing.T) {
	w := newWorld(t)
	data := pattern(5, 300_000)
	w.put("src", []byte(data))
	m := w.mount()
	src, err := os.Open(m.path("src"))
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	dst, err := os.Create(m.path("dst"))
	if err != nil {
		t.Fatal(err)
	}
	for left := len(data); left > 0; {
		n, err := unix.CopyFileRange(int(src.Fd()), nil, int(dst.Fd()), nil, left, 0)
		if err != nil || n == 0 {
			t.Fatalf("copy_file_range: %d, %v", n, err)
		}
		left -= n
	}
	if err := dst.Close(); err != nil {
		t.Fatal(err)
	}
	w.wantObject("dst", data)
}

// Semantics "Writing": an unlinked-while-writing file leaves nothing behind.
func TestUnlinkWhileWriting(t *testing.T) {
	w := newWorld(t)
	w.put("old", []byte("old"))
	m := w.mount()
	for _, name := range []string{"new", "old"} {
		f, err := os.OpenFile(m.path(name), os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte("data"), 0); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(m.path(name)); err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte("more"), 4); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 8)
		if _, err := f.ReadAt(b, 0); err != nil || string(b) != "datamore" {
			t.Errorf("%s: read %q, %v", name, b, err)
		}
		if err := f.Sync(); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		w.wantNoObject(name)
	}
	if got := names(t, m.dir); len(got) != 0 {
		t.Errorf("listed %q", got)
	}
}

// A file that is not stored yet is listed, and a directory with one is not
// empty.
func TestListUnstored(t *testing.T) {
	w := newWorld(t)
	m := w.mount()
	if err := os.Mkdir(m.path("d"), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(m.path("d/new"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got := names(t, m.path("d")); len(got) != 1 || got[0] != "new" {
		t.Errorf("listed %q", got)
	}
	wantErrno(t, os.Remove(m.path("d")), syscall.ENOTEMPTY)
}

// Semantics "Writing": overwrites are conditional: the loser of two writers
// gets ESTALE, or EEXIST with O_EXCL, and the winner's data stay.
func TestTwoWriters(t *testing.T) {
	w := newWorld(t)
	w.put("f", []byte("base"))
	a, b := w.mount(), w.mount()
	open := func(m *mounted, name string, flags int) *os.File {
		t.Helper()
		f, err := os.OpenFile(m.path(name), os.O_RDWR|flags, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte(m.dir), 0); err != nil {
			t.Fatal(err)
		}
		return f
	}
	fa, fb := open(a, "f", 0), open(b, "f", 0)
	if err := fb.Close(); err != nil {
		t.Fatal(err)
	}
	wantErrno(t, fa.Sync(), syscall.ESTALE)
	wantErrno(t, fa.Close(), syscall.ESTALE)
	w.wantObject("f", b.dir)
	wantFile(t, a.path("f"), b.dir)

	fa, fb = open(a, "new", os.O_CREATE), open(b, "new", os.O_CREATE)
	if err := fb.Close(); err != nil {
		t.Fatal(err)
	}
	wantErrno(t, fa.Close(), syscall.ESTALE)
	w.wantObject("new", b.dir)

	fa, fb = open(a, "excl", os.O_CREATE|os.O_EXCL), open(b, "excl", os.O_CREATE|os.O_EXCL)
	if err := fb.Close(); err != nil {
		t.Fatal(err)
	}
	wantErrno(t, fa.Close(), syscall.EEXIST)
	w.wantObject("excl", b.dir)

	_, err := os.OpenFile(a.path("excl"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	wantErrno(t, err, syscall.EEXIST)

	// What was lost is told again at unmount, and where it is.
	err = a.unmount()
	if err == nil {
		t.Fatal("unmount says nothing of the lost data")
	}
	for _, name := range []string{"f", "new", "excl"} {
		if !strings.Contains(err.Error(), name+" was not stored") {
			t.Errorf("unmount does not tell of %s: %v", name, err)
		}
	}
	kept := leftovers(t, a.spool)
	for _, name := range []string{"f", "new", "excl"} {
		if l, ok := kept[name]; !ok || l.Record.State != spool.Lost {
			t.Errorf("%s is kept as %+v", name, l.Record)
		} else if got := leftContent(t, l); !strings.HasPrefix(got, a.dir) {
			t.Errorf("%s is kept with %q", name, got)
		}
	}
	// Their programs know that they lost: nothing is stored later.
	w.remove("excl")
	again := w.mount(func(o *Options) { o.SpoolDir = a.spool })
	if r := again.Stats().Recovery; r != (Recovery{Conflicts: 3}) {
		t.Errorf("recovery: %+v", r)
	}
	w.wantNoObject("excl")
}

// Semantics "Writing": a file that another writer overtook costs nothing but
// room in the spool once it is closed, and is not forgotten.
func TestLoserIsLetGo(t *testing.T) {
	w := newWorld(t)
	w.put("f", []byte("base"))
	m := w.mount()
	f, err := os.OpenFile(m.path("f"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("mine"); err != nil {
		t.Fatal(err)
	}
	w.put("f", []byte("theirs"))
	wantErrno(t, f.Sync(), syscall.ESTALE)
	// The program can still save what it has.
	if _, err := f.WriteString(" and more"); err != nil {
		t.Error(err)
	}
	got := make([]byte, 13)
	if _, err := f.ReadAt(got, 0); err != nil || string(got) != "mine and more" {
		t.Errorf("reads %q, %v", got, err)
	}
	wantErrno(t, f.Close(), syscall.ESTALE)
	eventually(t, "nothing of it is open", func() bool {
		fds, err := filepath.Glob("/proc/self/fd/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			if path, _ := os.Readlink(fd); strings.HasPrefix(path, m.spool) && strings.HasSuffix(path, ".data") {
				return false
			}
		}
		return m.Stats().DirtyFiles == 0
	})
	wantFile(t, m.path("f"), "theirs")
	err = m.unmount()
	if err == nil || strings.Count(err.Error(), "f was not stored") != 1 || !strings.Contains(err.Error(), m.spool) {
		t.Errorf("unmount: %v", err)
	}
	if l, ok := leftovers(t, m.spool)["f"]; !ok || l.Record.State != spool.Lost || leftContent(t, l) != "mine and more" {
		t.Errorf("kept is %+v", l)
	}
}

// Semantics, close-to-open: an open after a close on another mount sees it.
func TestCloseToOpen(t *testing.T) {
	w := newWorld(t)
	a, b := w.mount(), w.mount()
	for i := range 10 {
		m, other := a, b
		if i%2 == 1 {
			m, other = b, a
		}
		data := pattern(i, 1000+i)
		f, err := os.OpenFile(m.path("f"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(data); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		eventuallyOpen(t, other.path("f"))
		wantFile(t, other.path("f"), data)
	}
}

// eventuallyOpen waits out a negative lookup.
func eventuallyOpen(t *testing.T, path string) {
	t.Helper()
	eventually(t, path+" can be opened", func() bool {
		f, err := os.Open(path)
		if err == nil {
			f.Close()
		}
		return err == nil
	})
}

// Semantics "Writing": the error comes from close; the data are kept for
// another try, and the old object stays whole.
func TestFailedUpload(t *testing.T) {
	w := newWorld(t)
	w.put("f", []byte("old"))
	so := w.storeOptions()
	so.RetryFor = 100 * time.Millisecond
	m := w.mountStore(so)
	f, err := os.OpenFile(m.path("f"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("new data"), 0); err != nil {
		t.Fatal(err)
	}
	w.env.Kill()
	wantErrno(t, f.Sync(), syscall.EIO)
	wantErrno(t, f.Close(), syscall.EIO)
	if st := m.Stats(); st.DirtyFiles != 1 || st.UploadErrors == 0 {
		t.Errorf("after a failed close: %+v", st)
	}
	w.env.Restart()
	w.wantObject("f", "old")
	wantFile(t, m.path("f"), "new data") // still the truth on this mount
	if err := m.unmount(); err != nil {
		t.Errorf("unmount: %v", err)
	}
	w.wantObject("f", "new data")
}

// Semantics "Writing": what cannot be stored by unmount is listed and kept.
func TestUnmountLists(t *testing.T) {
	w := newWorld(t)
	so := w.storeOptions()
	so.RetryFor = 100 * time.Millisecond
	m := w.mountStore(so)
	f, err := os.Create(m.path("f"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("precious"); err != nil {
		t.Fatal(err)
	}
	w.env.Kill()
	if err := f.Close(); err == nil {
		t.Error("close without a server succeeds")
	}
	err = m.unmount()
	if err == nil || !strings.Contains(err.Error(), "f was not stored") {
		t.Errorf("unmount: %v", err)
	}
	kept := leftovers(t, m.spool)
	if l, ok := kept["f"]; !ok || len(kept) != 1 || !l.Record.Durable || leftContent(t, l) != "precious" {
		t.Fatalf("kept %+v", kept)
	}
	w.env.Restart()
	w.mount(func(o *Options) { o.SpoolDir = m.spool })
	w.wantObject("f", "precious")
}

// SIGTERM and unmount store what is open and dirty; a mount in use is cut off.
func TestUnmountInUse(t *testing.T) {
	w := newWorld(t)
	m := w.mount()
	f, err := os.Create(m.path("f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("data"); err != nil {
		t.Fatal(err)
	}
	if err := m.unmount(); err != nil {
		t.Errorf("unmount: %v", err)
	}
	w.wantObject("f", "data")
	if _, err := FindMount(m.dir); !errors.Is(err, ErrNotMounted) {
		t.Errorf("mounted after unmount: %v", err)
	}
}

// A read-only mount refuses every change.
func TestReadOnly(t *testing.T) {
	w := newWorld(t)
	w.put("f", []byte("data"))
	m := w.mount(func(o *Options) { o.ReadOnly = true })
	wantFile(t, m.path("f"), "data")
	_, err := os.OpenFile(m.path("f"), os.O_RDWR, 0)
	wantErrno(t, err, syscall.EROFS)
	wantErrno(t, os.WriteFile(m.path("new"), nil, 0o644), syscall.EROFS)
	wantErrno(t, os.Mkdir(m.path("d"), 0o755), syscall.EROFS)
	wantErrno(t, os.Remove(m.path("f")), syscall.EROFS)
	wantErrno(t, os.Rename(m.path("f"), m.path("g")), syscall.EROFS)
	wantErrno(t, os.Chmod(m.path("f"), 0o600), syscall.EROFS)
	wantErrno(t, os.Symlink("f", m.path("l")), syscall.EROFS)
}

// Semantics "Writing": O_DIRECT works.
func TestDirectIO(t *testing.T) {
	w := newWorld(t)
	m := w.mount()
	f, err := os.OpenFile(m.path("f"), os.O_RDWR|os.O_CREATE|unix.O_DIRECT, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	data := pattern(6, 3<<20)
	if _, err := f.WriteString(data); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(data))
	if _, err := f.ReadAt(got, 0); err != nil || string(got) != data {
		t.Errorf("read back: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	w.wantObject("f", data)
}

// mmapHelper is the environment variable that makes the test binary write to a
// mapping of the file it names. A page fault in the process that serves the
// mount could keep its garbage collector waiting for itself.
const mmapHelper = "S3RDMAFS_TEST_MMAP"

func TestMain(m *testing.M) {
	for name, help := range map[string]func(string) error{mmapHelper: writeMapping, deadMountHelper: serveDeadMount} {
		if arg := os.Getenv(name); arg != "" {
			if err := help(arg); err != nil {
				os.Stderr.WriteString(err.Error())
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	os.Exit(m.Run())
}

func writeMapping(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	// The mapping outlives the descriptor.
	if err := f.Close(); err != nil {
		return err
	}
	for i := range b {
		b[i] ^= 0xff
	}
	return unix.Munmap(b)
}

// Semantics "Writing": what a shared mapping writes is stored, also after the
// descriptor was closed.
func TestSharedMapping(t *testing.T) {
	w := newWorld(t)
	data := []byte(pattern(7, 3<<20))
	w.put("f", data)
	m := w.mount()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), mmapHelper+"="+m.path("f"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for i := range data {
		data[i] ^= 0xff
	}
	wantFile(t, m.path("f"), string(data))
	eventually(t, "the mapping's writes are stored", func() bool { return m.Stats().DirtyFiles == 0 })
	w.wantObject("f", string(data))
}

// Semantics "Writing": any order, any offset: random operations against a
// plain slice, and the object compared after every close.
func TestRandomWrites(t *testing.T) {
	w := newWorld(t)
	m := w.mount()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		path := m.path(filepath.Base(t.Name()) + string(rune('a'+n%26)))
		os.Remove(path)
		var want []byte
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { f.Close() }()
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"write", "write", "write", "read", "truncate", "reopen", "sync"}).Draw(t, "op") {
			case "write":
				off := rapid.IntRange(0, 200_000).Draw(t, "off")
				data := pattern(rapid.IntRange(0, 100).Draw(t, "seed"), rapid.IntRange(1, 100_000).Draw(t, "len"))
				if _, err := f.WriteAt([]byte(data), int64(off)); err != nil {
					t.Fatal(err)
				}
				want = append(want, make([]byte, max(0, off+len(data)-len(want)))...)
				copy(want[off:], data)
			case "read":
				off := rapid.IntRange(0, len(want)).Draw(t, "off")
				got := make([]byte, rapid.IntRange(1, 100_000).Draw(t, "len"))
				k, err := f.ReadAt(got, int64(off))
				if err != nil && err != io.EOF {
					t.Fatal(err)
				}
				if wantN := min(len(got), len(want)-off); k != wantN || !bytes.Equal(got[:k], want[off:off+k]) {
					t.Fatalf("wrong bytes: %d, want %d", k, wantN)
				}
			case "truncate":
				size := rapid.IntRange(0, 250_000).Draw(t, "size")
				if err := f.Truncate(int64(size)); err != nil {
					t.Fatal(err)
				}
				want = append(want, make([]byte, max(0, size-len(want)))...)[:size]
			case "sync":
				if err := f.Sync(); err != nil {
					t.Fatal(err)
				}
			case "reopen":
				if err := f.Close(); err != nil {
					t.Fatal(err)
				}
				info, err := m.store.Head(context.Background(), w.bucket, filepath.Base(path))
				if err != nil || info.Size != int64(len(want)) {
					t.Fatalf("object has %d bytes, %v, want %d", info.Size, err, len(want))
				}
				if f, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
					t.Fatal(err)
				}
			}
			if st, err := f.Stat(); err != nil || st.Size() != int64(len(want)) {
				t.Fatalf("size %v, %v, want %d", st.Size(), err, len(want))
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("file differs, %v", err)
		}
	})
}
