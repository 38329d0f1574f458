package fs

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// Keys of user metadata, as s3fs-fuse and rclone write them: decimal st_mode,
// seconds with an optional fraction, decimal ids, and a percent-encoded JSON
// object of base64 values.
const (
	metaMode  = "mode"
	metaUID   = "uid"
	metaGID   = "gid"
	metaMTime = "mtime"
	metaATime = "atime"
	metaXattr = "xattr"
)

// maxMeta is how much user metadata S3 keeps for an object: bytes of names and
// values together.
const maxMeta = 2048

// attributes are what the metadata of an object say of a node.
type attributes struct {
	perm     uint32 // permission bits
	uid, gid uint32
	mtime    time.Time
	mtimeSet bool      // it stands in the metadata, or belongs there
	atime    time.Time // as set by utimens; zero: mtime
	ctime    time.Time // when the object was written
}

// apply fills the attributes of a kernel answer except type, size and inode.
func (a attributes) apply(out *fuse.Attr) {
	out.Mode = out.Mode&syscall.S_IFMT | a.perm
	out.Uid, out.Gid = a.uid, a.gid
	ctime, atime := a.ctime, a.atime
	if ctime.IsZero() {
		ctime = a.mtime
	}
	if atime.IsZero() {
		atime = a.mtime
	}
	out.SetTimes(&atime, &a.mtime, &ctime)
}

// attributesOf reads meta over the defaults of the mount.
func (s *filesystem) attributesOf(meta map[string]string, modTime time.Time, isDir bool) attributes {
	modTime = modTime.Truncate(time.Second) // listings have more digits than HEAD
	a := attributes{perm: s.o.FileMode, uid: s.o.UID, gid: s.o.GID, mtime: modTime, ctime: modTime}
	if isDir {
		a.perm = s.o.DirMode
	}
	if m, ok := parseMode(meta[metaMode]); ok {
		a.perm = m & 0o7777
	}
	if v, err := strconv.ParseUint(meta[metaUID], 10, 32); err == nil {
		a.uid = uint32(v)
	}
	if v, err := strconv.ParseUint(meta[metaGID], 10, 32); err == nil {
		a.gid = uint32(v)
	}
	if t, ok := parseMTime(meta[metaMTime]); ok {
		a.mtime, a.mtimeSet = t, true
	}
	if t, ok := parseMTime(meta[metaATime]); ok {
		a.atime = t
	}
	return a
}

// metaOf is the metadata to store for a node: what raw holds already, with a's
// values where they differ from the mount's defaults or had been told before.
func (s *filesystem) metaOf(raw map[string]string, a attributes, typ uint32) map[string]string {
	m := make(map[string]string, len(raw)+4)
	maps.Copy(m, raw)
	perm := s.o.FileMode
	if typ == syscall.S_IFDIR {
		perm = s.o.DirMode
	}
	put := func(key string, differs bool, value string) {
		if _, had := raw[key]; had || differs {
			m[key] = value
		}
	}
	put(metaMode, a.perm != perm || typ == syscall.S_IFLNK, strconv.FormatUint(uint64(typ|a.perm), 10))
	put(metaUID, a.uid != s.o.UID, strconv.FormatUint(uint64(a.uid), 10))
	put(metaGID, a.gid != s.o.GID, strconv.FormatUint(uint64(a.gid), 10))
	delete(m, metaMTime)
	if a.mtimeSet {
		m[metaMTime] = formatMTime(a.mtime)
	}
	delete(m, metaATime)
	if !a.atime.IsZero() {
		m[metaATime] = formatMTime(a.atime)
	}
	return m
}

// isLink reports whether meta marks a symbolic link.
func isLink(meta map[string]string) bool {
	m, ok := parseMode(meta[metaMode])
	return ok && m&syscall.S_IFMT == syscall.S_IFLNK
}

// parseMode reads st_mode in decimal, as s3fs-fuse writes it, or in octal, as
// rclone does. The two are told apart by the file type, which fits one of them.
func parseMode(v string) (uint32, bool) {
	if v == "" {
		return 0, false
	}
	for _, base := range []int{10, 8} {
		m, err := strconv.ParseUint(v, base, 32)
		if err != nil {
			continue
		}
		switch m & ^uint64(0o7777) {
		case 0, syscall.S_IFREG, syscall.S_IFDIR, syscall.S_IFLNK:
			return uint32(m), true
		}
	}
	return 0, false
}

func parseMTime(v string) (time.Time, bool) {
	if v == "" {
		return time.Time{}, false
	}
	sec, frac, _ := strings.Cut(v, ".")
	n, err := strconv.ParseInt(sec, 10, 64)
	if err != nil {
		t, err := time.Parse(time.RFC3339Nano, v)
		return t, err == nil
	}
	var ns int64
	if frac != "" {
		ns, err = strconv.ParseInt((frac + "000000000")[:9], 10, 64)
		if err != nil || ns < 0 {
			return time.Time{}, false
		}
		if strings.HasPrefix(sec, "-") {
			ns = -ns
		}
	}
	return time.Unix(n, ns), true
}

func formatMTime(t time.Time) string {
	sec, ns := t.Unix(), int64(t.Nanosecond())
	if ns == 0 {
		return strconv.FormatInt(sec, 10)
	}
	sign := ""
	if sec < 0 {
		// The fraction of a decimal number counts away from zero.
		sign, sec, ns = "-", -(sec + 1), 1e9-ns
	}
	return sign + strings.TrimRight(fmt.Sprintf("%d.%09d", sec, ns), "0")
}

// metaSize is what S3 counts against maxMeta.
func metaSize(m map[string]string) int {
	n := 0
	for k, v := range m {
		n += len(k) + len(v)
	}
	return n
}

// xattrsOf reads the extended attributes kept in meta; a value that is not
// base64 is taken as it is.
func xattrsOf(meta map[string]string) map[string][]byte {
	out := map[string][]byte{}
	v, err := url.PathUnescape(meta[metaXattr])
	if err != nil || v == "" {
		return out
	}
	var enc map[string]string
	if json.Unmarshal([]byte(v), &enc) != nil {
		return out
	}
	for name, value := range enc {
		b, err := base64.StdEncoding.DecodeString(value)
		if err != nil {
			b = []byte(value)
		}
		out[name] = b
	}
	return out
}

// withXattrs returns meta with exactly the extended attributes x.
func withXattrs(meta map[string]string, x map[string][]byte) map[string]string {
	m := maps.Clone(meta)
	if m == nil {
		m = map[string]string{}
	}
	delete(m, metaXattr)
	if len(x) > 0 {
		enc := make(map[string]string, len(x))
		for name, value := range x {
			enc[name] = base64.StdEncoding.EncodeToString(value)
		}
		b, err := json.Marshal(enc)
		if err != nil {
			panic(err) // a map of strings always encodes
		}
		m[metaXattr] = url.PathEscape(string(b))
	}
	return m
}
