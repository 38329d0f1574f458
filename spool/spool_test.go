package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"
)

var testID = Identity{Endpoint: "http://localhost:9000", Bucket: "bucket", Prefix: "some/prefix/"}

// fatal is what testing.T and rapid.T have in common.
type fatal interface {
	Helper()
	Fatal(args ...any)
	Errorf(format string, args ...any)
}

func openSpool(t fatal, root string, o Options) *Spool {
	t.Helper()
	s, err := Open(root, testID, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// crash ends s as a kill does: its locks go, everything else stays.
func crash(s *Spool) {
	for _, sl := range s.slots {
		sl.lock.Close()
	}
	s.slots = nil
}

func closeSpool(t fatal, s *Spool) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// newFile is a file with content and, with a key, a record.
func newFile(t fatal, s *Spool, key, content string) *File {
	t.Helper()
	f, err := s.Create()
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		if err := f.SetRecord(Record{Bucket: "bucket", Key: key, State: Written}); err != nil {
			t.Fatal(err)
		}
	}
	if content == "" {
		return f
	}
	if _, err := f.WriteAt([]byte(content), 0); err != nil {
		t.Fatal(err)
	}
	return f
}

func contentOf(t fatal, l *Leftover) string {
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

// found is the leftovers of s by key.
func found(t fatal, s *Spool) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, l := range s.Leftovers() {
		if l.Damage != nil {
			t.Errorf("damaged: %v", l.Damage)
			continue
		}
		if out[l.Record.Key] = ""; l.Path != "" {
			out[l.Record.Key] = contentOf(t, l)
		}
	}
	return out
}

// setBoot makes the package believe in another boot of the machine.
func setBoot(t *testing.T, id string) {
	t.Helper()
	was := bootID
	bootID = func() string { return id }
	t.Cleanup(func() { bootID = was })
}

func TestKilledLeavesWhatIsNotStored(t *testing.T) {
	root := t.TempDir()
	s := openSpool(t, root, Options{})
	newFile(t, s, "written", "some content")
	newFile(t, s, "", "clean")
	if err := newFile(t, s, "stored", "content").ClearRecord(); err != nil {
		t.Fatal(err)
	}
	if err := newFile(t, s, "discarded", "content").Discard(); err != nil {
		t.Fatal(err)
	}
	large := newFile(t, s, "short", "with a large record")
	for _, n := range []int{6000, 10} {
		r := Record{Bucket: "bucket", Key: "large", Meta: map[string]string{"m": strings.Repeat("x", n)}, State: Written}
		if err := large.SetRecord(r); err != nil {
			t.Fatal(err)
		}
	}
	renamed := newFile(t, s, "before", "moved")
	if err := renamed.SetRecord(Record{Bucket: "bucket", Key: "after", State: Written}); err != nil {
		t.Fatal(err)
	}
	uploads := newFile(t, s, "uploads", "content")
	left := Record{Bucket: "bucket", Key: "uploads", State: Stored, Uploads: []Upload{{Bucket: "bucket", Key: "uploads", ID: "1"}}}
	if err := uploads.SetRecord(left); err != nil {
		t.Fatal(err)
	}
	// Killed while it made a file, and while it replaced a large record.
	made := newFile(t, s, "", "")
	if err := os.WriteFile(made.slot.file(made.id, recordExt), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.own.file("0123", tempExt), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	crash(s)

	s = openSpool(t, root, Options{})
	want := map[string]string{"written": "some content", "after": "moved", "large": "with a large record", "uploads": ""}
	if got := found(t, s); !maps.Equal(got, want) {
		t.Errorf("left: %q, want %q", got, want)
	}
	for _, l := range s.Leftovers() {
		if !l.Trustworthy() {
			t.Errorf("%q is not trusted", l.Record.Key)
		}
		if err := l.Remove(); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.Leftovers(); len(got) != 0 {
		t.Errorf("%d left after removal", len(got))
	}
	closeSpool(t, s)
	if left, err := os.ReadDir(root); err != nil || len(left) != 0 {
		t.Errorf("an empty spool leaves %v, %v", left, err)
	}
}

func TestDiscardKeepsRecordOfUploads(t *testing.T) {
	root := t.TempDir()
	s := openSpool(t, root, Options{})
	f := newFile(t, s, "key", "content")
	r := Record{Bucket: "bucket", Key: "key", State: Stored, Uploads: []Upload{{Bucket: "bucket", Key: "key", ID: "id"}}}
	if err := f.SetRecord(r); err != nil {
		t.Fatal(err)
	}
	if err := f.Discard(); err != nil {
		t.Fatal(err)
	}
	closeSpool(t, s)
	s = openSpool(t, root, Options{})
	defer s.Close()
	all := s.Leftovers()
	if len(all) != 1 || all[0].Path != "" || all[0].Record.Uploads[0].ID != "id" {
		t.Errorf("left: %+v", all)
	}
}

// A file that has ended is used again, and nothing of it shows.
func TestFilesAreUsedAgain(t *testing.T) {
	root := t.TempDir()
	s := openSpool(t, root, Options{})
	first := newFile(t, s, "first", strings.Repeat("x", 10000))
	if err := first.Discard(); err != nil {
		t.Fatal(err)
	}
	second := newFile(t, s, "", "")
	if second.Path() != first.Path() {
		t.Errorf("another file: %s, %s", first.Path(), second.Path())
	}
	if err := first.SetRecord(Record{Bucket: "bucket", Key: "late", State: Written}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("record of a file that has ended: %v", err)
	}
	if n, err := second.ReadAt(make([]byte, 1), 0); n != 0 || err != io.EOF {
		t.Errorf("content of the first: %d bytes, %v", n, err)
	}
	if err := second.SetRecord(Record{Bucket: "bucket", Key: "second", State: Written}); err != nil {
		t.Fatal(err)
	}
	if _, err := second.WriteAt([]byte("short"), 0); err != nil {
		t.Fatal(err)
	}
	many := make([]*File, 2*maxIdle)
	for i := range many {
		many[i] = newFile(t, s, fmt.Sprint(i), "x")
	}
	for _, f := range many {
		if err := f.Discard(); err != nil {
			t.Fatal(err)
		}
	}
	crash(s)
	s = openSpool(t, root, Options{})
	defer closeSpool(t, s)
	if got := found(t, s); !maps.Equal(got, map[string]string{"second": "short"}) {
		t.Errorf("left: %q", got)
	}
}

func TestLivingSpoolIsNotTouched(t *testing.T) {
	root := t.TempDir()
	a := openSpool(t, root, Options{})
	newFile(t, a, "a", "of a")
	b := openSpool(t, root, Options{})
	newFile(t, b, "b", "of b")
	if a.own.path == b.own.path {
		t.Fatal("two mounts have one slot")
	}
	if got := found(t, b); len(got) != 0 {
		t.Errorf("a living mount's files are leftovers: %q", got)
	}
	c, err := Adopt(root, testID)
	if err != nil {
		t.Fatal(err)
	}
	if c.Busy() != 2 || len(c.Leftovers()) != 0 {
		t.Errorf("adopted %v, %d busy", c.Leftovers(), c.Busy())
	}
	if _, err := c.Create(); err == nil {
		t.Error("a file in a spool that has no slot")
	}
	closeSpool(t, c)
	crash(a)
	if c, err = Adopt(root, testID); err != nil {
		t.Fatal(err)
	}
	if got := found(t, c); c.Busy() != 1 || !maps.Equal(got, map[string]string{"a": "of a"}) {
		t.Errorf("adopted %q, %d busy", got, c.Busy())
	}
	closeSpool(t, c)
	crash(b)
	d := openSpool(t, root, Options{})
	defer closeSpool(t, d)
	if got := found(t, d); !maps.Equal(got, map[string]string{"a": "of a", "b": "of b"}) {
		t.Errorf("left by both: %q", got)
	}
}

func TestIdentitiesAreApart(t *testing.T) {
	root := t.TempDir()
	s := openSpool(t, root, Options{})
	newFile(t, s, "key", "content")
	crash(s)
	for _, other := range []Identity{
		{Endpoint: "http://elsewhere", Bucket: testID.Bucket, Prefix: testID.Prefix},
		{Endpoint: testID.Endpoint, Bucket: "other", Prefix: testID.Prefix},
		{Endpoint: testID.Endpoint, Bucket: testID.Bucket},
	} {
		o, err := Open(root, other, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := found(t, o); len(got) != 0 {
			t.Errorf("%v sees %q", other, got)
		}
		closeSpool(t, o)
	}
	ids, err := Identities(root)
	if err != nil || len(ids) != 1 || ids[0] != testID {
		t.Errorf("identities: %v, %v", ids, err)
	}
	if ids, err := Identities(filepath.Join(root, "none")); err != nil || len(ids) != 0 {
		t.Errorf("identities of no directory: %v, %v", ids, err)
	}
}

// A damaged record keeps no mount from starting, and is never deleted.
func TestDamagedIsSetAside(t *testing.T) {
	root := t.TempDir()
	s := openSpool(t, root, Options{})
	damage := map[string]func(f *File) error{
		"flipped": func(f *File) error {
			b, err := os.ReadFile(f.slot.file(f.id, recordExt))
			if err != nil {
				return err
			}
			b[len(b)-2] ^= 1
			return os.WriteFile(f.slot.file(f.id, recordExt), b, 0o600)
		},
		"empty":           func(f *File) error { return os.Truncate(f.slot.file(f.id, recordExt), 0) },
		"without content": func(f *File) error { return os.Remove(f.Path()) },
		"other version": func(f *File) error {
			return os.WriteFile(f.slot.file(f.id, recordExt), []byte("s3rdmafs-spool 2 \n{}"), 0o600)
		},
	}
	for key, do := range damage {
		if err := do(newFile(t, s, key, "precious")); err != nil {
			t.Fatal(err)
		}
	}
	newFile(t, s, "good", "good")
	crash(s)
	for range 2 {
		s = openSpool(t, root, Options{})
		bad, good := 0, 0
		for _, l := range s.Leftovers() {
			switch {
			case l.Damage == nil:
				good++
				continue
			case !errors.Is(l.Damage, ErrDamaged):
				t.Errorf("damage is %v", l.Damage)
			case l.Trustworthy():
				t.Errorf("trusted: %v", l.Damage)
			}
			bad++
			if l.Path != "" && contentOf(t, l) != "precious" {
				t.Errorf("content is %q", contentOf(t, l))
			}
		}
		if bad != len(damage) || good != 1 {
			t.Errorf("%d damaged, %d good", bad, good)
		}
		closeSpool(t, s)
	}
}

// After a power loss only what was kept in order is trusted.
func TestPowerLoss(t *testing.T) {
	root := t.TempDir()
	s := openSpool(t, root, Options{})
	newFile(t, s, "cached", "perhaps")
	newFile(t, s, "", "its record is lost")
	if err := newFile(t, s, "kept", "surely").Keep(); err != nil {
		t.Fatal(err)
	}
	crash(s)
	setBoot(t, "another boot")
	s = openSpool(t, root, Options{})
	trusted := map[string]bool{}
	for _, l := range s.Leftovers() {
		if l.Damage != nil {
			if got := contentOf(t, l); got != "its record is lost" {
				t.Errorf("set aside: %q, %v", got, l.Damage)
			}
			continue
		}
		trusted[l.Record.Key] = l.Trustworthy()
		// An update makes content no better.
		if err := l.Update(l.Record); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]bool{"cached": false, "kept": true}
	if !maps.Equal(trusted, want) || len(s.Leftovers()) != 3 {
		t.Errorf("trusted: %v, want %v; %d left", trusted, want, len(s.Leftovers()))
	}
	crash(s)
	s = openSpool(t, root, Options{})
	defer s.Close()
	for _, l := range s.Leftovers() {
		if l.Damage == nil && l.Trustworthy() != want[l.Record.Key] {
			t.Errorf("%q is trusted after an update: %v", l.Record.Key, l.Trustworthy())
		}
	}
}

func TestKeepWithoutRecordDiscards(t *testing.T) {
	s := openSpool(t, t.TempDir(), Options{})
	f := newFile(t, s, "", "content")
	if err := f.Keep(); err != nil {
		t.Fatal(err)
	}
	if n := s.Used(); n != 0 {
		t.Errorf("%d bytes are in use", n)
	}
	closeSpool(t, s)
	if _, err := os.Stat(f.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("content is there: %v", err)
	}
}

func TestMoveTo(t *testing.T) {
	// Another file system, where there is one, and the same.
	for _, to := range []string{t.TempDir(), "/dev/shm"} {
		if _, err := os.Stat(to); err != nil {
			continue
		}
		root, dir := t.TempDir(), t.TempDir()
		if to == "/dev/shm" {
			var err error
			if dir, err = os.MkdirTemp(to, "spool-test"); err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
		}
		s := openSpool(t, root, Options{})
		newFile(t, s, "key", "content")
		crash(s)
		s = openSpool(t, root, Options{})
		l := s.Leftovers()[0]
		path := filepath.Join(dir, "file")
		if err := os.WriteFile(path, []byte("in the way"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := l.MoveTo(path); !errors.Is(err, os.ErrExist) {
			t.Errorf("over a file: %v", err)
		}
		if got := contentOf(t, l); got != "content" {
			t.Errorf("after a refusal: %q", got)
		}
		if err := l.MoveTo(path + "2"); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(path + "2"); err != nil || string(b) != "content" {
			t.Errorf("moved: %q, %v", b, err)
		}
		closeSpool(t, s)
		if left, err := os.ReadDir(root); err != nil || len(left) != 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	}
}

func TestLimit(t *testing.T) {
	s := openSpool(t, t.TempDir(), Options{Size: 1 << 20, Reserve: -1})
	defer s.Close()
	f := newFile(t, s, "a", strings.Repeat("x", 600<<10))
	if err := f.Truncate(1 << 40); err != nil {
		t.Errorf("a hole: %v", err)
	}
	g := newFile(t, s, "b", "")
	big := bytes.Repeat([]byte("y"), 600<<10)
	if n, err := g.WriteAt(big, 0); n != 0 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("over the limit: %d, %v", n, err)
	}
	if err := s.Fits(int64(len(big))); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("over the limit: %v", err)
	}
	if _, err := f.WriteAt([]byte("within"), 0); err != nil {
		t.Errorf("within the limit: %v", err)
	}
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	if _, err := g.WriteAt(big, 0); err != nil {
		t.Errorf("after the other was cut: %v", err)
	}
	for _, f := range []*File{f, g, g} {
		if err := f.Discard(); err != nil {
			t.Error(err)
		}
	}
	if n := s.Used(); n != 0 {
		t.Errorf("%d bytes in use of no file", n)
	}
}

func TestReserve(t *testing.T) {
	s := openSpool(t, t.TempDir(), Options{Reserve: 1 << 60})
	defer s.Close()
	f := newFile(t, s, "", "")
	defer f.Discard()
	if _, err := f.WriteAt([]byte("x"), 0); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("into the reserve: %v", err)
	}
}

func TestDirectoriesArePrivate(t *testing.T) {
	root := filepath.Join(t.TempDir(), "a", "spool")
	s := openSpool(t, root, Options{})
	f := newFile(t, s, "key", "content")
	for _, path := range []string{root, s.dir, s.own.path, f.Path(), f.slot.file(f.id, recordExt)} {
		fi, err := os.Stat(path)
		if err != nil || fi.Mode()&0o077 != 0 {
			t.Errorf("%s: %v, %v", path, fi.Mode(), err)
		}
	}
	crash(s)
	if err := os.Chmod(s.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s = openSpool(t, root, Options{})
	if fi, err := os.Stat(s.dir); err != nil || fi.Mode()&0o077 != 0 {
		t.Errorf("left open: %v, %v", fi.Mode(), err)
	}
	crash(s)
	if os.Geteuid() != 0 {
		t.Skip("needs root to give a directory away")
	}
	if err := os.Chown(s.dir, 12345, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(root, testID, Options{}); err == nil || !strings.Contains(err.Error(), "belongs to user 12345") {
		t.Errorf("another user's directory: %v", err)
	}
}

func TestDefaultRoot(t *testing.T) {
	if os.Geteuid() == 0 {
		if got, err := DefaultRoot(); err != nil || got != "/var/lib/s3rdmafs/spool" {
			t.Errorf("for root: %q, %v", got, err)
		}
		return
	}
	t.Setenv("XDG_STATE_HOME", "/state")
	if got, err := DefaultRoot(); err != nil || got != "/state/s3rdmafs/spool" {
		t.Errorf("with XDG_STATE_HOME: %q, %v", got, err)
	}
	t.Setenv("XDG_STATE_HOME", "")
	t.Setenv("HOME", "/home/x")
	if got, err := DefaultRoot(); err != nil || got != "/home/x/.local/state/s3rdmafs/spool" {
		t.Errorf("without: %q, %v", got, err)
	}
}

// Many processes come and go in one directory; each has a slot of its own.
func TestConcurrentOpen(t *testing.T) {
	root := t.TempDir()
	errs := make(chan error)
	const workers, rounds = 4, 30
	for w := range workers {
		go func() {
			for i := range rounds {
				s, err := Open(root, testID, Options{})
				if err == nil {
					var f *File
					if f, err = s.Create(); err == nil {
						err = f.SetRecord(Record{Bucket: "b", Key: fmt.Sprintf("%d-%d", w, i), State: Written})
						if n := len(s.Leftovers()); n != 0 {
							err = fmt.Errorf("%d leftovers of living processes", n)
						}
						err = errors.Join(err, f.Discard())
					}
					err = errors.Join(err, s.Close())
				}
				if err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range workers {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(root); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// Random lives of files with kills between: what has a record is found, with
// the content it had, and nothing else.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		root, err := os.MkdirTemp("", "spool-model")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(root)
		s := openSpool(t, root, Options{})
		defer func() { crash(s) }()
		type model struct {
			f       *File // nil after a kill
			key     string
			content []byte
		}
		var files []*model
		keys := 0
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			op := rapid.SampledFrom([]string{"create", "write", "record", "clear", "discard", "keep", "kill"}).Draw(t, "op")
			live := slices.DeleteFunc(slices.Clone(files), func(m *model) bool { return m.f == nil })
			if op != "create" && op != "kill" && len(live) == 0 {
				continue
			}
			var m *model
			if len(live) > 0 {
				m = live[rapid.IntRange(0, len(live)-1).Draw(t, "file")]
			}
			switch op {
			case "create":
				f, err := s.Create()
				if err != nil {
					t.Fatal(err)
				}
				files = append(files, &model{f: f})
			case "write":
				off := rapid.IntRange(0, 10000).Draw(t, "off")
				data := rapid.SliceOfN(rapid.Byte(), 1, 50).Draw(t, "data")
				if _, err := m.f.WriteAt(data, int64(off)); err != nil {
					t.Fatal(err)
				}
				m.content = append(m.content, make([]byte, max(0, off+len(data)-len(m.content)))...)
				copy(m.content[off:], data)
			case "record":
				keys++
				m.key = fmt.Sprint("key", keys)
				if err := m.f.SetRecord(Record{Bucket: "bucket", Key: m.key, State: Written}); err != nil {
					t.Fatal(err)
				}
			case "clear":
				m.key = ""
				if err := m.f.ClearRecord(); err != nil {
					t.Fatal(err)
				}
			case "discard":
				m.key, m.content = "", nil
				if err := m.f.Discard(); err != nil {
					t.Fatal(err)
				}
				m.f = nil
			case "keep":
				if err := m.f.Keep(); err != nil {
					t.Fatal(err)
				}
				m.f = nil
			case "kill":
				crash(s)
				s = openSpool(t, root, Options{})
				want := map[string]string{}
				for _, m := range files {
					if m.f = nil; m.key != "" {
						want[m.key] = string(m.content)
					}
				}
				if got := found(t, s); !maps.Equal(got, want) {
					t.Fatalf("found %q, want %q", got, want)
				}
			}
		}
	})
}

// A file that has ended gives its data file to the next one; who still holds the
// old one reaches nothing of that.
func TestEndedFileReachesNothing(t *testing.T) {
	s := openSpool(t, t.TempDir(), Options{})
	defer closeSpool(t, s)
	old, err := s.Create()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := old.WriteAt([]byte("old"), 0); err != nil {
		t.Fatal(err)
	}
	if err := old.Discard(); err != nil {
		t.Fatal(err)
	}
	next, err := s.Create()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := next.WriteAt([]byte("next"), 0); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4)
	if n, err := old.ReadAt(buf, 0); !errors.Is(err, os.ErrClosed) {
		t.Errorf("read of a file that has ended = %q, %v", buf[:n], err)
	}
	if _, err := old.WriteAt([]byte("lost"), 0); !errors.Is(err, os.ErrClosed) {
		t.Errorf("write to a file that has ended = %v", err)
	}
	if err := old.Truncate(0); !errors.Is(err, os.ErrClosed) {
		t.Errorf("truncate of a file that has ended = %v", err)
	}
	if n, err := next.ReadAt(buf, 0); n != 4 || string(buf) != "next" {
		t.Errorf("the next file = %q, %v", buf[:n], err)
	}
}
