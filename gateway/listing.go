package gateway

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/s3response"
)

// quickListings answers listings below a directory that is not there, or has
// nothing in it, from that directory. versitygw walks down from the bucket for
// them, through every entry on the way, and a file system asks for such a listing
// before it makes a file. The answers are the same.
type quickListings struct {
	backend.Backend
	dir string // absolute; holds the buckets
	// object describes a file as versitygw's listings do.
	object func(bucket string, owner bool) backend.GetObjFunc
}

func (l quickListings) ListObjects(ctx context.Context, in *s3.ListObjectsInput) (s3response.ListObjectsResult, error) {
	below, ok := l.nothingBelow(value(in.Bucket), value(in.Prefix))
	if !ok {
		return l.Backend.ListObjects(ctx, in)
	}
	out, err := l.Backend.ListObjects(ctx, withoutKeys(in, &in.MaxKeys))
	if err != nil {
		return out, err
	}
	out.MaxKeys = in.MaxKeys
	out.Contents, err = l.contents(value(in.Bucket), below, value(in.Marker), value(in.MaxKeys), true)
	return out, err
}

func (l quickListings) ListObjectsV2(ctx context.Context, in *s3.ListObjectsV2Input) (s3response.ListObjectsV2Result, error) {
	below, ok := l.nothingBelow(value(in.Bucket), value(in.Prefix))
	if !ok {
		return l.Backend.ListObjectsV2(ctx, in)
	}
	out, err := l.Backend.ListObjectsV2(ctx, withoutKeys(in, &in.MaxKeys))
	if err != nil {
		return out, err
	}
	out.MaxKeys = in.MaxKeys
	out.Contents, err = l.contents(value(in.Bucket), below, value(out.ContinuationToken), value(in.MaxKeys), value(in.FetchOwner))
	count := int32(len(out.Contents))
	out.KeyCount = &count
	return out, err
}

// withoutKeys returns a copy of a request that asks for none of the keys, and with
// that for no walk; the bucket is looked at all the same. maxKeys is in's.
func withoutKeys[T any](in *T, maxKeys **int32) *T {
	before, none := *maxKeys, int32(0)
	*maxKeys = &none
	request := *in
	*maxKeys = before
	return &request
}

// emptyDir is a directory without entries, or, with no name, none at all.
type emptyDir struct {
	key string // its key, with the slash, if the prefix is all of it
	fi  fs.FileInfo
}

// nothingBelow reports whether the directory that a prefix leads into has no
// entries, or is none. It is false when in doubt.
func (l quickListings) nothingBelow(bucket, prefix string) (d emptyDir, ok bool) {
	name, rest, ok := cutLast(prefix, "/")
	if !ok || !fs.ValidPath(name) || !fs.ValidPath(bucket) || strings.Contains(name, posix.MetaTmpDir) {
		return d, false
	}
	f, err := os.OpenFile(filepath.Join(l.dir, bucket, name), os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ENAMETOOLONG) {
		return d, true
	}
	if err != nil {
		return d, false
	}
	defer f.Close()
	if _, err := f.Readdirnames(1); err != io.EOF {
		return d, false
	}
	if rest != "" {
		return d, true
	}
	fi, err := f.Stat()
	// The walk does not follow links.
	if err != nil || l.hasLink(bucket, name) {
		return d, false
	}
	return emptyDir{key: name + "/", fi: fi}, true
}

// cutLast is strings.Cut at the last separator.
func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

func (l quickListings) hasLink(bucket, name string) bool {
	path := filepath.Join(l.dir, bucket)
	for part := range strings.SplitSeq(name, "/") {
		path = filepath.Join(path, part)
		if fi, err := os.Lstat(path); err != nil || !fi.IsDir() {
			return true
		}
	}
	return false
}

// contents are those of a listing: the directory itself, if it is an object.
func (l quickListings) contents(bucket string, d emptyDir, marker string, maxKeys int32, owner bool) ([]s3response.Object, error) {
	if d.key == "" || d.key <= marker || maxKeys == 0 {
		return nil, nil
	}
	o, err := l.object(bucket, owner)(d.key, fs.FileInfoToDirEntry(d.fi))
	if errors.Is(err, backend.ErrSkipObj) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return []s3response.Object{o}, nil
}
