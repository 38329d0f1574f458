package fs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// openFlags are the flags of open(2) that are combined with each other and with
// the access modes.
var openFlags = []struct {
	bit  int
	name string
}{
	{unix.O_CREAT, "CREAT"}, {unix.O_EXCL, "EXCL"}, {unix.O_TRUNC, "TRUNC"},
	{unix.O_APPEND, "APPEND"}, {unix.O_DIRECT, "DIRECT"}, {unix.O_SYNC, "SYNC"},
}

func openFlagNames(flags int) string {
	names := []string{[]string{"RDONLY", "WRONLY", "RDWR"}[flags&unix.O_ACCMODE]}
	for _, f := range openFlags {
		if flags&f.bit == f.bit {
			names = append(names, f.name)
		}
	}
	return strings.Join(names, "|")
}

// openObjects are what is opened, by the function that makes it in a directory.
var openObjects = []struct {
	name string
	make func(d openDir)
}{
	{"absent", func(openDir) {}},
	{"file", func(d openDir) { d.file("x", 0o644) }},
	{"read-only", func(d openDir) { d.file("x", 0o444) }},
	{"directory", func(d openDir) { d.check(unix.Mkdirat(d.fd, "x", 0o755)) }},
	{"link", func(d openDir) {
		d.file("target", 0o644)
		d.check(unix.Symlinkat("target", d.fd, "x"))
	}},
	{"dangling link", func(d openDir) { d.check(unix.Symlinkat("target", d.fd, "x")) }},
}

// openDir is the directory of one attempt.
type openDir struct {
	t  *testing.T
	fd int
}

func (d openDir) check(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

// sub opens a directory for as long as the test lasts.
func (d openDir) sub(name string) openDir {
	d.t.Helper()
	fd, err := unix.Openat(d.fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	d.check(err)
	d.t.Cleanup(func() { unix.Close(fd) })
	return openDir{d.t, fd}
}

func (d openDir) mkdir(name string) openDir {
	d.t.Helper()
	d.check(unix.Mkdirat(d.fd, name, 0o755))
	return d.sub(name)
}

// openBlock is the unit of all input and output, as O_DIRECT wants it.
const openBlock = 4096

// alignedBlocks are n blocks of memory that O_DIRECT accepts.
func alignedBlocks(n int) []byte {
	b, err := unix.Mmap(-1, 0, n*openBlock, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		panic(err)
	}
	return b
}

// file makes a file of two blocks.
func (d openDir) file(name string, mode uint32) {
	d.t.Helper()
	fd, err := unix.Openat(d.fd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	d.check(err)
	_, err = unix.Write(fd, bytes.Repeat([]byte("i"), 2*openBlock))
	d.check(err)
	d.check(unix.Fchmod(fd, mode))
	d.check(unix.Close(fd))
}

// clear removes what an attempt left.
func (d openDir) clear() {
	for _, name := range []string{"x", "target"} {
		err := unix.Unlinkat(d.fd, name, 0)
		if errors.Is(err, unix.EISDIR) {
			err = unix.Unlinkat(d.fd, name, unix.AT_REMOVEDIR)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			d.t.Fatal(err)
		}
	}
}

// attempt opens x, uses what it got, and tells everything a program can see.
func (d openDir) attempt(flags int) string {
	d.t.Helper()
	var out strings.Builder
	say := func(what string, n int, err error) {
		fmt.Fprintf(&out, "%s %d", what, n)
		if err != nil {
			fmt.Fprintf(&out, " %s", errnoName(errnoFrom(err)))
		}
		out.WriteString("; ")
	}
	fd, err := unix.Openat(d.fd, "x", flags|unix.O_CLOEXEC, 0o640)
	say("open", 0, err)
	if err == nil {
		d.use(fd, say)
	}
	for _, name := range []string{"x", "target"} {
		var st unix.Stat_t
		err := unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			st.Size = 0
		}
		say(fmt.Sprintf("%s is %o of", name, st.Mode), int(st.Size), err)
		if st.Mode&unix.S_IFMT == unix.S_IFREG {
			d.check(unix.Fchmodat(d.fd, name, 0o600, 0))
			fd, err := unix.Openat(d.fd, name, unix.O_RDONLY, 0)
			d.check(err)
			say(readBlocks(fd, unix.Read))
			d.check(unix.Close(fd))
		}
	}
	return out.String()
}

// use reads and writes an open file in each way.
func (d openDir) use(fd int, say func(string, int, error)) {
	d.t.Helper()
	at := func() {
		off, err := unix.Seek(fd, 0, unix.SEEK_CUR)
		say("at", int(off), err)
	}
	got, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	say("flags", shown(got), err)
	say(readBlocks(fd, unix.Read))
	at()
	block := alignedBlocks(1)
	defer unix.Munmap(block)
	for i := range block {
		block[i] = 'w'
	}
	n, err := unix.Write(fd, block)
	say("write", n, err)
	at()
	for i := range block {
		block[i] = 'p'
	}
	n, err = unix.Pwrite(fd, block, openBlock)
	say("pwrite", n, err)
	at()
	say(readBlocks(fd, func(fd int, p []byte) (int, error) { return unix.Pread(fd, p, 0) }))
	say("ftruncate", 0, unix.Ftruncate(fd, 3*openBlock))
	say("fsync", 0, unix.Fsync(fd))
	say("close", 0, unix.Close(fd))
}

// readBlocks is what one read of more than there is says, as arguments of say.
func readBlocks(fd int, read func(int, []byte) (int, error)) (what string, n int, err error) {
	b := alignedBlocks(8)
	defer unix.Munmap(b)
	n, err = read(fd, b)
	var blocks []byte
	for at := 0; at < n; at += openBlock {
		blocks = append(blocks, b[at])
		if c := bytes.Count(b[at:min(at+openBlock, n)], b[at:at+1]); c != openBlock {
			blocks = append(blocks, '?')
		}
	}
	return fmt.Sprintf("read %q", blocks), n, err
}

// directOnTmpfs reports whether files of the directory can be opened with
// O_DIRECT, as those of tmpfs can since Linux 6.6.
func directOnTmpfs(t *testing.T, dir string) bool {
	t.Helper()
	f, err := os.OpenFile(dir+"/probe", os.O_RDWR|os.O_CREATE|unix.O_DIRECT, 0o600)
	if err != nil {
		return false
	}
	f.Close()
	return true
}

// Every combination of flags on every kind of object gives the errno, the
// offsets and the content that tmpfs gives, whether the object was made by the
// same mount, or by another one before or after a look at the name.
func TestOpenFlags(t *testing.T) {
	const shm = "/dev/shm"
	var st unix.Statfs_t
	if err := unix.Statfs(shm, &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		t.Skip("needs a tmpfs at " + shm)
	}
	w := newWorld(t)
	m, other := w.mount(), w.mount()
	ref, err := os.MkdirTemp(shm, "s3rdmafs-open-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(ref) })
	direct := directOnTmpfs(t, ref)

	for i, object := range openObjects {
		t.Run(object.name, func(t *testing.T) {
			t.Parallel()
			var parents [3]openDir // of the reference, the mount, the other mount
			for j, root := range []string{ref, m.dir, other.dir} {
				dir := fmt.Sprintf("%s/%d", root, i)
				if j < 2 {
					if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 1000, 1000)); err != nil {
						t.Fatal(err)
					}
				}
				fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer unix.Close(fd)
				parents[j] = openDir{t, fd}
			}
			// Root may open anything. The thread ends with the goroutine.
			runtime.LockOSThread()
			if err := syscall.Setfsuid(1000); err != nil {
				t.Fatal(err)
			}
			for flags := range openCombinations {
				expected := flags
				if !direct {
					expected &^= unix.O_DIRECT
				}
				object.make(parents[0])
				want := parents[0].attempt(expected)
				parents[0].clear()
				if expected != flags {
					want = strings.Replace(want, fmt.Sprintf("flags %d", shown(expected)), fmt.Sprintf("flags %d", shown(flags)), 1)
				}
				compare := func(how, got string) {
					if got != want {
						t.Errorf("%s of what was %s:\n%s is what tmpfs says\n%s is what the mount says", openFlagNames(flags), how, want, got)
					}
				}

				object.make(parents[1])
				compare("made here", parents[1].attempt(flags))
				parents[1].clear()
				if flags&(unix.O_DIRECT|unix.O_SYNC) != 0 {
					continue // no matter for how the name is found
				}
				name := fmt.Sprint(flags)
				there := parents[1].mkdir(name)
				object.make(there)
				here := parents[2].sub(name)
				compare("made elsewhere", here.attempt(flags))
				here.clear()
				if flags&unix.O_CREAT == 0 {
					continue // an absence may be remembered
				}
				name += "-missed"
				there = parents[1].mkdir(name)
				here = parents[2].sub(name)
				if err := unix.Faccessat(here.fd, "x", unix.F_OK, 0); !errors.Is(err, unix.ENOENT) {
					t.Fatal(err)
				}
				object.make(there)
				// As when the kernel remembers for longer than the mount.
				forgetAbsent(other.fs)
				compare("made elsewhere after it was missed here", here.attempt(flags))
				here.clear()
			}
		})
	}
}

// forgetAbsent lets a file system, but not the kernel, forget which names are
// not there.
func forgetAbsent(s *filesystem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.inos {
		if d, ok := n.(*dir); ok {
			clear(d.absent)
		}
	}
}

// shown are the flags that F_GETFL tells of and attempt compares.
func shown(flags int) int {
	return flags & (unix.O_ACCMODE | unix.O_APPEND | unix.O_DIRECT | unix.O_SYNC)
}

// openCombinations yields each access mode with each set of openFlags.
func openCombinations(yield func(flags int) bool) {
	for mode := range 3 {
		for set := range 1 << len(openFlags) {
			flags := mode
			for i, f := range openFlags {
				if set>>i&1 != 0 {
					flags |= f.bit
				}
			}
			if !yield(flags) {
				return
			}
		}
	}
}
