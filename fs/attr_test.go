package fs

import (
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Semantics "attributes": mode, owner, mtime persist in metadata under the keys
// of s3fs-fuse and rclone, and only where they differ from the defaults.
func TestAttributesPersist(t *testing.T) {
	w := newWorld(t)
	m := w.mount()
	write(t, m.path("plain"), "x")
	if meta := w.meta("plain"); len(meta) != 0 {
		t.Errorf("metadata of a plain file: %v", meta)
	}
	at, read := time.Unix(1600000000, 250e6), time.Unix(1500000000, 0)

	// Before the close: carried by the upload.
	f, err := os.OpenFile(m.path("early"), os.O_WRONLY|os.O_CREATE, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("data"); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(m.path("early"), read, at); err != nil {
		t.Fatal(err)
	}
	if err := f.Chown(7, 8); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if n := m.Stats().Uploads; n != 2 {
		t.Errorf("%d uploads of two files", n)
	}

	// After the close.
	write(t, m.path("late"), "data")
	for _, err := range []error{
		os.Chmod(m.path("late"), 0o755), os.Chown(m.path("late"), 7, 8), os.Chtimes(m.path("late"), read, at),
		os.Mkdir(m.path("dir"), 0o700), os.Chtimes(m.path("dir"), at, at),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"early", "late"} {
		meta := w.meta(name)
		if meta[metaMode] != "33261" || meta[metaUID] != "7" || meta[metaGID] != "8" || meta[metaMTime] != "1600000000.25" {
			t.Errorf("metadata of %s: %v", name, meta)
		}
		w.wantObject(name, "data")
	}
	for _, m := range []*mounted{m, w.mount()} {
		// With the attributes of READDIRPLUS, too.
		if got := names(t, m.dir); !slices.Equal(got, []string{"dir", "early", "late", "plain"}) {
			t.Errorf("listed %q", got)
		}
		for _, name := range []string{"early", "late"} {
			st := stat(t, m.path(name))
			if st.Mode != syscall.S_IFREG|0o755 || st.Uid != 7 || st.Gid != 8 || st.Mtim.Sec != at.Unix() || st.Mtim.Nsec != 250e6 ||
				st.Atim.Sec != read.Unix() {
				t.Errorf("%s is %+v", name, st)
			}
		}
		if st := stat(t, m.path("dir")); st.Mode != syscall.S_IFDIR|0o700 || st.Mtim.Sec != at.Unix() {
			t.Errorf("dir is %+v", st)
		}
	}
	// A new content keeps the mode and has a new time.
	write(t, m.path("late"), "more")
	if st := stat(t, m.path("late")); st.Mode != syscall.S_IFREG|0o755 || time.Since(time.Unix(st.Mtim.Sec, 0)) > time.Minute {
		t.Errorf("late is %+v", st)
	}
	if meta := w.meta("late"); meta[metaMode] != "33261" || meta[metaMTime] != "" {
		t.Errorf("metadata of late: %v", meta)
	}
}

// A change of the mode is no change of the content: the time stays.
func TestChmodKeepsTime(t *testing.T) {
	w := newWorld(t)
	w.put("f", []byte("x"))
	m := w.mount()
	before := stat(t, m.path("f")).Mtim.Sec
	eventually(t, "the next second", func() bool { return time.Now().Unix() > before+1 })
	if err := os.Chmod(m.path("f"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := stat(t, w.mount().path("f")).Mtim.Sec; got != before {
		t.Errorf("mtime %d becomes %d", before, got)
	}
}

// What other programs keep in metadata survives a new content.
func TestForeignMetadata(t *testing.T) {
	w := newWorld(t)
	w.put("f", []byte("x"), "colour", "red", metaMTime, "5", metaUID, "9")
	m := w.mount()
	if st := stat(t, m.path("f")); st.Mtim.Sec != 5 || st.Uid != 9 {
		t.Errorf("f is %+v", st)
	}
	write(t, m.path("f"), "y")
	if meta := w.meta("f"); meta["colour"] != "red" || meta[metaUID] != "9" {
		t.Errorf("metadata is %v", meta)
	}
}

// Semantics "attributes": symbolic links persist, and are links in listings.
func TestSymlinks(t *testing.T) {
	w := newWorld(t)
	w.put("dir/file", []byte("data"))
	w.put("theirs", []byte("dir/file\n"), metaMode, "41471")
	m := w.mount()
	if err := os.Symlink("dir/file", m.path("ours")); err != nil {
		t.Fatal(err)
	}
	w.wantObject("ours", "dir/file")
	if got := w.meta("ours")[metaMode]; got != "41471" {
		t.Errorf("mode in the metadata is %q", got)
	}
	for _, m := range []*mounted{m, w.mount()} {
		entries, err := os.ReadDir(m.dir)
		if err != nil {
			t.Fatal(err)
		}
		links := 0
		for _, e := range entries {
			if e.Type() == os.ModeSymlink {
				links++
			}
		}
		if links != 2 {
			t.Errorf("%d links listed, want 2", links)
		}
		for _, name := range []string{"ours", "theirs"} {
			if got, err := os.Readlink(m.path(name)); err != nil || got != "dir/file" {
				t.Errorf("%s leads to %q, %v", name, got, err)
			}
			wantFile(t, m.path(name), "data")
		}
	}
	wantErrno(t, os.Symlink("x", m.path("ours")), syscall.EEXIST)
	wantErrno(t, os.Symlink(strings.Repeat("x", 4096), m.path("long")), syscall.ENAMETOOLONG)
	if err := os.Rename(m.path("ours"), m.path("dir/moved")); err != nil {
		t.Fatal(err)
	}
	if got, err := os.Readlink(w.mount().path("dir/moved")); err != nil || got != "dir/file" {
		t.Errorf("moved link leads to %q, %v", got, err)
	}
	if err := os.Remove(m.path("theirs")); err != nil {
		t.Error(err)
	}
	w.wantNoObject("theirs")
	w.wantObject("dir/file", "data")
}

// Semantics "attributes": user xattrs persist; other namespaces are not there.
func TestXattrs(t *testing.T) {
	w := newWorld(t)
	w.put("f", []byte("x"), metaXattr, "%7B%22user.theirs%22%3A%22dmFsdWU%3D%22%7D")
	m := w.mount()
	if err := os.Mkdir(m.path("d"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"f", "d"} {
		if err := unix.Setxattr(m.path(name), "user.ours", []byte("\x00\xff"), 0); err != nil {
			t.Fatal(err)
		}
		wantErrno(t, unix.Setxattr(m.path(name), "user.ours", nil, unix.XATTR_CREATE), syscall.EEXIST)
		wantErrno(t, unix.Setxattr(m.path(name), "user.none", nil, unix.XATTR_REPLACE), syscall.ENODATA)
		wantErrno(t, unix.Setxattr(m.path(name), "trusted.x", nil, 0), syscall.EOPNOTSUPP)
		wantErrno(t, unix.Setxattr(m.path(name), "user.huge", make([]byte, 4000), 0), syscall.ENOSPC)
	}
	for _, m := range []*mounted{m, w.mount()} {
		buf := make([]byte, 100)
		for _, name := range []string{"f", "d"} {
			if n, err := unix.Getxattr(m.path(name), "user.ours", buf); err != nil || string(buf[:n]) != "\x00\xff" {
				t.Errorf("%s: user.ours is %q, %v", name, buf[:max(n, 0)], err)
			}
		}
		n, err := unix.Getxattr(m.path("f"), "user.theirs", buf)
		if err != nil || string(buf[:n]) != "value" {
			t.Errorf("user.theirs is %q, %v", buf[:max(n, 0)], err)
		}
		n, err = unix.Listxattr(m.path("f"), buf)
		if err != nil || string(buf[:n]) != "user.ours\x00user.theirs\x00" {
			t.Errorf("list is %q, %v", buf[:max(n, 0)], err)
		}
	}
	w.wantObject("f", "x")
	if err := unix.Removexattr(m.path("f"), "user.ours"); err != nil {
		t.Error(err)
	}
	wantErrno(t, unix.Removexattr(m.path("f"), "user.ours"), syscall.ENODATA)
}

// Semantics "attributes": hard links, devices and pipes are EPERM; mknod of a
// regular file works.
func TestSpecialFiles(t *testing.T) {
	w := newWorld(t)
	w.put("f", nil)
	m := w.mount()
	wantErrno(t, os.Link(m.path("f"), m.path("g")), syscall.EPERM)
	wantErrno(t, unix.Mkfifo(m.path("p"), 0o644), syscall.EPERM)
	wantErrno(t, unix.Mknod(m.path("c"), unix.S_IFCHR|0o644, int(unix.Mkdev(1, 3))), syscall.EPERM)
	if err := unix.Mknod(m.path("r"), unix.S_IFREG|0o644, 0); err != nil {
		t.Error(err)
	}
	w.wantObject("r", "")
	wantErrno(t, unix.Mknod(m.path("r"), unix.S_IFREG|0o644, 0), syscall.EEXIST)
}

// A look at the bucket does not change the times of what was written here:
// tar takes another ctime for a change while it read, and git reads again.
func TestTimesStay(t *testing.T) {
	w := newWorld(t)
	m := w.mount(func(o *Options) { o.AttrTTL, o.EntryTTL = time.Nanosecond, time.Nanosecond })
	write(t, m.path("f"), "data")
	before := stat(t, m.path("f"))
	wantFile(t, m.path("f"), "data") // open asks the bucket
	after := stat(t, m.path("f"))
	if before.Ctim != after.Ctim || before.Mtim != after.Mtim {
		t.Errorf("mtime, ctime were %v, %v and are %v, %v", before.Mtim, before.Ctim, after.Mtim, after.Ctim)
	}
}
