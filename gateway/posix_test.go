package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/versity/versitygw/s3response"
)

// open opens a gateway for a look from inside; it is never served.
func open(t *testing.T, o Options) (*Gateway, error) {
	t.Helper()
	o.AccessKey, o.SecretKey, o.NoRCRoutes = "access", "secret", true
	o.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	g, err := New(o)
	if err == nil {
		t.Cleanup(func() {
			if err := g.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	return g, err
}

// put stores an object in the backend and returns its ETag, in quotes.
func put(t *testing.T, g *Gateway, bucket, key, data string) string {
	t.Helper()
	n := int64(len(data))
	out, err := g.be.PutObject(t.Context(), s3response.PutObjectInput{
		Bucket: &bucket, Key: &key, ContentLength: &n, Body: bytes.NewReader([]byte(data)),
		Metadata: map[string]string{"name": "value"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.ETag
}

func TestOnePosixGatewayPerProcess(t *testing.T) {
	before, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	g, err := open(t, Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, Options{Dir: t.TempDir()}); !errors.Is(err, ErrPosixInUse) {
		t.Errorf("second gateway: %v, want ErrPosixInUse", err)
	}
	if err := g.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Getwd(); err != nil || after != before {
		t.Errorf("current directory %s after Close, %v; before %s", after, err, before)
	}
	if _, err := open(t, Options{Dir: t.TempDir()}); err != nil {
		t.Errorf("gateway after Close: %v", err)
	}
}

// The table of parts of a very large upload does not fit; nothing else may
// fail to be stored.
func TestOnlyThePartTableMayBeMissing(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	huge := make([]byte, 1<<20) // Linux takes 64 KiB at most
	if err := (xattrStore{}).StoreAttribute(f, "", f.Name(), partTableAttr, huge); err != nil {
		t.Errorf("table of parts: %v", err)
	}
	if err := (xattrStore{}).StoreAttribute(f, "", f.Name(), etagAttr, huge); err == nil {
		t.Error("an ETag that does not fit was taken")
	}
}

// Where the file system has no extended attributes, metadata survives in a
// directory of its own.
func TestMetadataWithoutExtendedAttributes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a file system without extended attributes can only be mounted by root")
	}
	mount := t.TempDir()
	if err := syscall.Mount("ramfs", mount, "ramfs", 0, ""); err != nil {
		t.Skipf("ramfs cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(mount, 0); err != nil {
			t.Error(err)
		}
	})
	dir := filepath.Join(mount, "buckets")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	o := Options{Dir: dir, Buckets: []string{"bucket"}, MetadataDir: t.TempDir()}
	g, err := open(t, o)
	if err != nil {
		t.Fatal(err)
	}
	etag := put(t, g, "bucket", "key", "data")
	if err := g.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if g, err = open(t, o); err != nil {
		t.Fatal(err)
	}
	if g.files != "" {
		t.Error("objects would be opened without their metadata")
	}
	bucket, key, all := "bucket", "key", ""
	out, err := g.be.GetObject(t.Context(), &s3.GetObjectInput{Bucket: &bucket, Key: &key, Range: &all})
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(out.Body)
	out.Body.Close()
	if err != nil || string(data) != "data" || *out.ETag != etag || out.Metadata["name"] != "value" {
		t.Errorf("%q with ETag %s, metadata %v, %v; want ETag %s", data, *out.ETag, out.Metadata, err, etag)
	}
	if err := g.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A body ends where the Content-Length says, even when its file has grown.
func TestFileBodyKeepsItsLength(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, bytes.Repeat([]byte("0123456789"), 10_000), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int64{0, 7, sendfileMin, 50_000} {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		body, err := newFileBody(f, 13, n)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		got, err := body.WriteTo(&out)
		if err != nil || got != n || int64(out.Len()) != n || n > 0 && out.Bytes()[0] != '3' {
			t.Errorf("%d bytes: wrote %d (%d), %v", n, got, out.Len(), err)
		}
		if err := body.Close(); err != nil {
			t.Error(err)
		}
	}
}
