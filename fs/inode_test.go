package fs

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Semantics "Rename, remove, links, attributes": inode numbers are stable and
// equal in lookup and readdir.
func TestInodeNumbers(t *testing.T) {
	w := newWorld(t)
	for _, key := range []string{"a", "d/x", "d/y", "e/"} {
		w.put(key, nil)
	}
	seen := map[string]uint64{}
	for _, edit := range []func(*Options){func(*Options) {}, func(o *Options) { o.TrustList = true }} {
		m := w.mount(edit)
		for _, name := range []string{"a", "d", "d/x", "d/y", "e"} {
			ino := stat(t, m.path(name)).Ino
			if old, ok := seen[name]; ok && old != ino {
				t.Errorf("%s has inode %d, and %d on another mount", name, ino, old)
			}
			seen[name] = ino
		}
		for _, dir := range []string{"", "d"} {
			for name, ino := range direntInodes(t, m.path(dir)) {
				path := name
				if dir != "" {
					path = dir + "/" + name
				}
				if name != "." && name != ".." && ino != stat(t, m.path(path)).Ino {
					t.Errorf("readdir gives %s inode %d, stat %d", path, ino, stat(t, m.path(path)).Ino)
				}
			}
		}
	}
	numbers := map[uint64]string{}
	for name, ino := range seen {
		if other, ok := numbers[ino]; ok {
			t.Errorf("%s and %s share inode %d", name, other, ino)
		}
		numbers[ino] = name
	}
}

// direntInodes is d_ino by name.
func direntInodes(t *testing.T, dir string) map[string]uint64 {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	out := map[string]uint64{}
	buf := make([]byte, 16<<10)
	for {
		n, err := unix.Getdents(fd, buf)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return out
		}
		for b := buf[:n]; len(b) > 0; {
			reclen := int(b[16]) | int(b[17])<<8
			name := b[19:reclen]
			for i, c := range name {
				if c == 0 {
					name = name[:i]
					break
				}
			}
			var ino uint64
			for i := 7; i >= 0; i-- {
				ino = ino<<8 | uint64(b[i])
			}
			out[string(name)] = ino
			b = b[reclen:]
		}
	}
}

// Two live files never share an inode number, whatever names they had.
func TestInodeReuse(t *testing.T) {
	w := newWorld(t)
	m := w.mount()
	write(t, m.path("a"), "first")
	first := stat(t, m.path("a")).Ino
	if err := os.Rename(m.path("a"), m.path("b")); err != nil {
		t.Fatal(err)
	}
	if got := stat(t, m.path("b")).Ino; got != first {
		t.Errorf("inode %d becomes %d by a rename", first, got)
	}
	write(t, m.path("a"), "second")
	if second := stat(t, m.path("a")).Ino; second == first {
		t.Errorf("a and b share inode %d", first)
	}
	if got, want := direntInodes(t, m.dir)["a"], stat(t, m.path("a")).Ino; got != want {
		t.Errorf("readdir gives inode %d, stat %d", got, want)
	}

	f, err := os.Open(m.path("b"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Remove(m.path("b")); err != nil {
		t.Fatal(err)
	}
	write(t, m.path("b"), "third")
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	if got := stat(t, m.path("b")).Ino; got == st.Ino {
		t.Errorf("the unlinked file and its successor share inode %d", got)
	}
	if st.Nlink != 0 {
		t.Errorf("an unlinked file has %d links", st.Nlink)
	}
}
