package gateway

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"s3rdmafs/rc"
	"s3rdmafs/token"
)

// A file that somebody changes in place has no version to deliver. One that is
// overwritten or deleted as objects are still has.
func TestRangeOfAChangingFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "bucket", "key")
	old := time.Now().Add(-time.Hour)
	inPlace := func(change func(*os.File) error) func() error {
		return func() error {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			return errors.Join(change(f), f.Close())
		}
	}
	tests := map[string]struct {
		change func() error
		status int
	}{
		"not at all":  {func() error { return nil }, 0},
		"other bytes": {inPlace(func(f *os.File) error { _, err := f.WriteAt([]byte("x"), 999); return err }), 503},
		"other bytes, same mtime": {func() error {
			err := inPlace(func(f *os.File) error { _, err := f.WriteAt([]byte("x"), 999); return err })()
			return errors.Join(err, os.Chtimes(path, old, old))
		}, 503},
		"longer":  {inPlace(func(f *os.File) error { return f.Truncate(2000) }), 503},
		"shorter": {inPlace(func(f *os.File) error { return f.Truncate(10) }), 503},
		"deleted": {func() error { return os.Remove(path) }, 0},
		"overwritten": {func() error {
			other := filepath.Join(dir, "other")
			return errors.Join(os.WriteFile(other, make([]byte, 1000), 0o600), os.Rename(other, path))
		}, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if err := errors.Join(os.RemoveAll(filepath.Dir(path)), os.Mkdir(filepath.Dir(path), 0o700)); err != nil {
				t.Fatal(err)
			}
			f, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			_, err = f.Write(make([]byte, 1000))
			if err = errors.Join(err, (xattrStore{}).StoreAttribute(f, "bucket", "key", etagAttr, []byte("etag"))); err != nil {
				t.Skipf("no extended attributes: %v", err)
			}
			if err := errors.Join(f.Close(), os.Chtimes(path, old, old)); err != nil {
				t.Fatal(err)
			}
			s := objects{&Gateway{files: dir}}
			r, err, ok := s.openFile(token.Target{Bucket: "bucket", Key: "key"}, 0, 1000, rc.Conditions{})
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			defer r.Reader.Close()
			if _, err := io.ReadFull(r.Reader, make([]byte, 500)); err != nil {
				t.Fatal(err)
			}
			if err := tt.change(); err != nil {
				t.Fatal(err)
			}
			_, err = io.ReadFull(r.Reader, make([]byte, 500))
			var known *rc.S3Error
			if errors.As(err, &known); tt.status == 0 && err != nil || tt.status != 0 && (known == nil || known.Status != tt.status) {
				t.Errorf("the last bytes come with %v, want status %d", err, tt.status)
			}
		})
	}
}

// What is neither a file nor a directory is no object, and nobody waits for it.
func TestFIFOIsNoObject(t *testing.T) {
	dir := t.TempDir()
	g, err := open(t, Options{Dir: dir, Buckets: []string{"bucket"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "bucket", "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	bucket, key, all, source := "bucket", "fifo", "", "bucket/fifo"
	dst, id, part := "copy", "", int32(1)
	up, err := g.be.CreateMultipartUpload(t.Context(), s3response.CreateMultipartUploadInput{Bucket: &bucket, Key: &dst})
	if err != nil {
		t.Fatal(err)
	}
	id = up.UploadId
	for what, op := range map[string]func() error{
		"GET by RC": func() error {
			p := rc.Principal{Value: &caller{}}
			_, err := objects{g}.OpenRange(t.Context(), p, token.Target{Bucket: bucket, Key: key}, 0, 1000, rc.Conditions{})
			return err
		},
		"GET": func() error {
			_, err := g.be.GetObject(t.Context(), &s3.GetObjectInput{Bucket: &bucket, Key: &key, Range: &all})
			return err
		},
		"HEAD": func() error {
			_, err := g.be.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: &bucket, Key: &key})
			return err
		},
		"copy": func() error {
			_, err := g.be.CopyObject(t.Context(), s3response.CopyObjectInput{Bucket: &bucket, Key: &dst, CopySource: &source})
			return err
		},
		"copy of a part": func() error {
			_, err := g.be.UploadPartCopy(t.Context(), &s3.UploadPartCopyInput{
				Bucket: &bucket, Key: &dst, CopySource: &source, CopySourceRange: &all, UploadId: &id, PartNumber: &part,
			})
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			done := make(chan error, 1)
			go func() { done <- op() }()
			select {
			case err := <-done:
				var own *rc.S3Error
				if !errors.As(err, &own) || own.Status != http.StatusNotFound || own.Code != "NoSuchKey" {
					if known := s3err.S3Error(nil); !errors.As(err, &known) || known.BaseError().Code != "NoSuchKey" {
						t.Errorf("error = %v, want NoSuchKey", err)
					}
				}
			case <-time.After(20 * time.Second):
				t.Error("still waiting for the FIFO")
			}
		})
	}
}
