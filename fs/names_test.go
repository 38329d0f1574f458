package fs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"s3rdmafs/store"
)

func TestNameErrno(t *testing.T) {
	for name, want := range map[string]syscall.Errno{
		"a":                       0,
		"ä+%20 &":                 0,
		strings.Repeat("x", 255):  0,
		strings.Repeat("x", 256):  syscall.ENAMETOOLONG,
		"":                        syscall.EINVAL,
		".":                       syscall.EINVAL,
		"..":                      syscall.EINVAL,
		"...":                     0,
		"a\x00b":                  syscall.EINVAL,
		"a\nb":                    syscall.EINVAL,
		"a\x7f":                   syscall.EINVAL,
		"a/b":                     syscall.EINVAL,
		"\xff\xfe":                syscall.EILSEQ,
		"a\u0301 is not \u00e1":   0,
		strings.Repeat("ä", 128):  syscall.ENAMETOOLONG,
		strings.Repeat("\xff", 3): syscall.EILSEQ,
	} {
		if got := nameErrno(name); got != want {
			t.Errorf("nameErrno(%q) = %s, want %s", name, errnoName(got), errnoName(want))
		}
	}
	if got := keyErrno(strings.Repeat("p/", 500), strings.Repeat("x", 24), false); got != 0 {
		t.Errorf("a key of 1024 bytes: %v", got)
	}
	if got := keyErrno(strings.Repeat("p/", 500), strings.Repeat("x", 24), true); got != syscall.ENAMETOOLONG {
		t.Errorf("a directory marker of 1025 bytes: %v", got)
	}
}

// Semantics "Names": every listed key has one defined fate, a and a/b are one
// entry, siblings of a skipped key are intact.
func TestMerge(t *testing.T) {
	object := func(key string) store.Info { return store.Info{Key: key, Size: 1} }
	prefix := func(key string) store.Info { return store.Info{Key: key, IsPrefix: true} }
	type want struct{ found, held, skipped string }
	for _, tt := range []struct {
		name    string
		page    store.Page
		pending []listing
		want    want
	}{
		{"plain", store.Page{Infos: []store.Info{object("d/"), object("d/a"), prefix("d/b/"), object("d/c")}}, nil,
			want{"b/ a c", "", ""}},
		{"marker of a subdirectory is a prefix", store.Page{Infos: []store.Info{prefix("d/b/")}}, nil, want{"b/", "", ""}},
		{"object and prefix", store.Page{Infos: []store.Info{object("d/a"), object("d/a-b"), prefix("d/a/"), object("d/a0")}}, nil,
			want{"a/ a-b a0", "", ""}},
		{"prefix may follow", store.Page{Infos: []store.Info{object("d/a"), object("d/a-b")}, Next: "more"}, nil,
			want{"", "a a-b", ""}},
		{"prefix cannot follow any more", store.Page{Infos: []store.Info{object("d/a"), object("d/b")}, Next: "more"}, nil,
			want{"a", "b", ""}},
		{"prefix follows", store.Page{Infos: []store.Info{prefix("d/a/"), object("d/c")}}, []listing{{name: "a"}},
			want{"a/ c", "", ""}},
		{"no prefix follows", store.Page{Infos: []store.Info{object("d/c")}}, []listing{{name: "a"}},
			want{"a c", "", ""}},
		{"held over a page", store.Page{Infos: []store.Info{object("d/a-c")}, Next: "more"}, []listing{{name: "a"}},
			want{"", "a a-c", ""}},
		{"empty last page", store.Page{}, []listing{{name: "a"}}, want{"a", "", ""}},
		{"not names", store.Page{Infos: []store.Info{
			prefix("d//"), prefix("d/./"), prefix("d/../"), object("d/.."), object("d/a\nb"),
			object("d/" + strings.Repeat("x", 256)), object("d/good"),
		}}, nil, want{"good", "", "d// d/./ d/../ d/.. d/a\nb d/" + strings.Repeat("x", 256)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			found, held, skipped := merge("d/", tt.page, tt.pending)
			show := func(ls []listing) string {
				var out []string
				for _, l := range ls {
					if l.isDir {
						l.name += "/"
					}
					out = append(out, l.name)
				}
				return strings.Join(out, " ")
			}
			got := want{show(found), show(held), strings.Join(skipped, " ")}
			if got != tt.want {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}

// Semantics "Names": bytes are bytes; "+" and "%20" are literal.
func TestOddNames(t *testing.T) {
	w := newWorld(t)
	odd := []string{"a+b", "a b", "a%20b", "%", "ünïcödé", "u\u0301 and \u00fa", "'\"<>&;#?", "tilde~", "x=y", "-", "...", "\\"}
	for i, name := range odd {
		w.put("in/"+name, []byte(fmt.Sprint(i)))
	}
	m := w.mount()
	got := names(t, m.path("in"))
	want := slices.Sorted(slices.Values(odd))
	if !slices.Equal(got, want) {
		t.Errorf("listed %q, want %q", got, want)
	}
	for i, name := range odd {
		wantFile(t, m.path("in/"+name), fmt.Sprint(i))
		write(t, m.path("out-"+name), name)
		w.wantObject("out-"+name, name)
	}
}

// Semantics "Names": creating a non-UTF-8 or over-long name fails at create.
func TestCreateBadNames(t *testing.T) {
	w := newWorld(t)
	m := w.mount()
	for name, want := range map[string]syscall.Errno{
		"\xff":                    syscall.EILSEQ,
		"tab\there":               syscall.EINVAL,
		strings.Repeat("x", 256):  syscall.ENAMETOOLONG,
		strings.Repeat("x", 1000): syscall.ENAMETOOLONG,
	} {
		f, err := os.Create(m.path(name))
		if err == nil {
			f.Close()
		}
		wantErrno(t, err, want)
		wantErrno(t, os.Mkdir(m.path(name), 0o755), want)
		wantErrno(t, os.Symlink("x", m.path(name)), want)
	}
	dir := m.path(strings.Repeat("d", 250))
	for len(dir)-len(m.dir) < 1010 {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		dir += "/" + strings.Repeat("d", 250)
	}
	_, err := os.Create(filepath.Dir(dir) + "/" + strings.Repeat("f", 30))
	wantErrno(t, err, syscall.ENAMETOOLONG)
	if n := m.Stats().SkippedKeys; n != 0 {
		t.Errorf("%d keys skipped", n)
	}
}

// Semantics "Names": a key that cannot be a name is skipped, counted and
// reported once; its siblings are intact.
func TestSkippedKeys(t *testing.T) {
	w := newWorld(t)
	w.put("d/tab\there", nil)
	w.put("d/good", []byte("good"))
	m := w.mount()
	for range 3 {
		if got := names(t, m.path("d")); !slices.Equal(got, []string{"good"}) {
			t.Errorf("listed %q", got)
		}
	}
	wantFile(t, m.path("d/good"), "good")
	if n := m.Stats().SkippedKeys; n != 1 {
		t.Errorf("%d keys counted as skipped, want 1", n)
	}
	wantErrno(t, os.Remove(m.path("d")), syscall.ENOTEMPTY)
	w.wantObject("d/tab\there", "")
}

// Semantics "Names": a directory needs no marker; one made by mkdir has one
// and keeps existing; so does one in use whose last file goes.
func TestDirectories(t *testing.T) {
	w := newWorld(t)
	w.put("implicit/deep/file", []byte("x"))
	w.put("foreign/", nil)
	m := w.mount()
	if got := names(t, m.dir); !slices.Equal(got, []string{"foreign", "implicit"}) {
		t.Errorf("listed %q", got)
	}
	for _, d := range []string{"implicit", "implicit/deep", "foreign"} {
		if st := stat(t, m.path(d)); st.Mode&syscall.S_IFMT != syscall.S_IFDIR || st.Nlink < 1 {
			t.Errorf("%s has mode %o, %d links", d, st.Mode, st.Nlink)
		}
	}
	if err := os.Mkdir(m.path("made"), 0o755); err != nil {
		t.Fatal(err)
	}
	w.wantObject("made/", "")
	wantErrno(t, os.Mkdir(m.path("made"), 0o755), syscall.EEXIST)
	wantErrno(t, os.Mkdir(m.path("implicit"), 0o755), syscall.EEXIST)

	wantErrno(t, os.Remove(m.path("implicit")), syscall.ENOTEMPTY)
	if err := os.Remove(m.path("implicit/deep/file")); err != nil {
		t.Fatal(err)
	}
	w.wantObject("implicit/deep/", "")
	if got := names(t, m.path("implicit/deep")); len(got) != 0 {
		t.Errorf("listed %q", got)
	}
	for _, d := range []string{"implicit/deep", "implicit", "foreign", "made"} {
		if err := os.Remove(m.path(d)); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(m.path(d)); !os.IsNotExist(err) {
			t.Errorf("%s after rmdir: %v", d, err)
		}
	}
	if keys := w.keys(); len(keys) != 0 {
		t.Errorf("left in the bucket: %q", keys)
	}
}

// Semantics "Names": a mount of a prefix does not leave it.
func TestPrefixMount(t *testing.T) {
	w := newWorld(t)
	w.put("a/b/c/file", []byte("in"))
	w.put("a/bb", []byte("out"))
	w.put("other", []byte("out"))
	m := w.mount(func(o *Options) { o.Prefix = "a/b" })
	if got := names(t, m.dir); !slices.Equal(got, []string{"c"}) {
		t.Errorf("listed %q", got)
	}
	wantFile(t, m.path("c/file"), "in")
	write(t, m.path("new"), "data")
	w.wantObject("a/b/new", "data")
	if err := os.RemoveAll(m.path("c")); err != nil {
		t.Error(err)
	}
	if err := os.Remove(m.path("new")); err != nil {
		t.Error(err)
	}
	if got := names(t, m.dir); len(got) != 0 {
		t.Errorf("listed %q", got)
	}
	if got := w.keys(); !slices.Equal(got, []string{"a/bb", "other"}) {
		t.Errorf("left in the bucket: %q", got)
	}
}

// Semantics "Names": a mount of all buckets shows each as a directory.
func TestAllBuckets(t *testing.T) {
	w := newWorld(t)
	w.put("file", []byte("one"))
	m := w.mount(func(o *Options) { o.Bucket = "" })
	if got := names(t, m.dir); !slices.Equal(got, []string{w.bucket}) {
		t.Errorf("listed %q", got)
	}
	wantFile(t, m.path(w.bucket+"/file"), "one")
	if err := os.Mkdir(m.path("made-here"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, m.path("made-here/file"), "two")
	wantErrno(t, os.Rename(m.path("made-here/file"), m.path(w.bucket+"/moved")), syscall.EXDEV)
	wantErrno(t, os.Rename(m.path("made-here"), m.path("renamed")), syscall.EXDEV)
	wantErrno(t, os.Remove(m.path("made-here")), syscall.ENOTEMPTY)
	if err := os.Mkdir(m.path("unstored"), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(m.path("unstored/f"))
	if err != nil {
		t.Fatal(err)
	}
	wantErrno(t, unix.Rmdir(m.path("unstored")), syscall.ENOTEMPTY)
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	wantErrno(t, os.WriteFile(m.path("file"), nil, 0o644), syscall.EPERM)
	if err := os.Remove(m.path("made-here/file")); err != nil {
		t.Error(err)
	}
	if err := os.Remove(m.path("made-here")); err != nil {
		t.Error(err)
	}
	if ok, err := w.s3.BucketExists(t.Context(), "made-here"); err != nil || ok {
		t.Errorf("bucket exists after rmdir: %v, %v", ok, err)
	}
	if _, err := os.Lstat(m.path("no-such-bucket")); !os.IsNotExist(err) {
		t.Errorf("absent bucket: %v", err)
	}
}
