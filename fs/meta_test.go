package fs

import (
	"maps"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestMTimeFormat(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want time.Time
		ok   bool
	}{
		{"1500000000", time.Unix(1500000000, 0), true},
		{"1500000000.5", time.Unix(1500000000, 5e8), true},
		{"1500000000.123456789", time.Unix(1500000000, 123456789), true},
		{"-1.5", time.Unix(-2, 5e8), true},
		{"2020-01-02T03:04:05Z", time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC), true},
		{"", time.Time{}, false},
		{"soon", time.Time{}, false},
		{"1.x", time.Time{}, false},
	} {
		got, ok := parseMTime(tt.in)
		if ok != tt.ok || ok && !got.Equal(tt.want) {
			t.Errorf("parseMTime(%q) = %v, %v, want %v, %v", tt.in, got, ok, tt.want, tt.ok)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		want := time.Unix(rapid.Int64Range(-1e11, 1e11).Draw(t, "sec"), rapid.Int64Range(0, 999999999).Draw(t, "ns"))
		if got, ok := parseMTime(formatMTime(want)); !ok || !got.Equal(want) {
			t.Fatalf("%v becomes %q becomes %v", want, formatMTime(want), got)
		}
	})
}

func TestParseMode(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want uint32
		ok   bool
	}{
		{"33188", syscall.S_IFREG | 0o644, true},  // s3fs-fuse
		{"41471", syscall.S_IFLNK | 0o777, true},  // s3fs-fuse
		{"16877", syscall.S_IFDIR | 0o755, true},  // s3fs-fuse
		{"100644", syscall.S_IFREG | 0o644, true}, // rclone
		{"40755", syscall.S_IFDIR | 0o755, true},  // rclone
		{"", 0, false},
		{"rwx", 0, false},
	} {
		got, ok := parseMode(tt.in)
		if got != tt.want || ok != tt.ok {
			t.Errorf("parseMode(%q) = %o, %v, want %o, %v", tt.in, got, ok, tt.want, tt.ok)
		}
	}
}

func TestMetaRoundTrip(t *testing.T) {
	o, err := Options{FileMode: 0o640, UID: 7, GID: 8}.fill()
	if err != nil {
		t.Fatal(err)
	}
	s := &filesystem{o: o}
	at := time.Unix(1700000000, 0)

	plain := s.attributesOf(nil, at, false)
	if m := s.metaOf(nil, plain, syscall.S_IFREG); len(m) != 0 {
		t.Errorf("defaults are written: %v", m)
	}
	a := attributes{perm: 0o755, uid: 1000, gid: 8, mtime: time.Unix(5, 25e7), mtimeSet: true, ctime: at}
	m := s.metaOf(map[string]string{"colour": "red", metaGID: "8"}, a, syscall.S_IFREG)
	want := map[string]string{"colour": "red", metaMode: "33261", metaUID: "1000", metaGID: "8", metaMTime: "5.25"}
	if !maps.Equal(m, want) {
		t.Errorf("metadata is %v, want %v", m, want)
	}
	got := s.attributesOf(m, at, false)
	if !got.mtime.Equal(a.mtime) {
		t.Errorf("mtime is %v, want %v", got.mtime, a.mtime)
	}
	got.mtime, got.ctime = a.mtime, a.ctime
	if got != a {
		t.Errorf("read back as %+v, want %+v", got, a)
	}
}

func TestXattrFormat(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.MapOf(rapid.StringMatching(`user\.[a-zà%+ ]{1,8}`), rapid.SliceOf(rapid.Byte())).Draw(t, "xattrs")
		got := xattrsOf(withXattrs(map[string]string{"a": "b"}, want))
		if len(got) != len(want) {
			t.Fatalf("%v becomes %v", want, got)
		}
		for k, v := range want {
			if string(got[k]) != string(v) {
				t.Fatalf("%q: %q becomes %q", k, v, got[k])
			}
		}
	})
	if x := xattrsOf(map[string]string{metaXattr: "%7B%22user.a%22%3A%22Yg%3D%3D%22%7D"}); string(x["user.a"]) != "b" {
		t.Errorf("s3fs-fuse's form is read as %v", x)
	}
}
