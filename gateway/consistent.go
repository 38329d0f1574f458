package gateway

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"
)

// consistentReads makes GetObject and HeadObject of the posix backend answer
// with one version of the object, and keeps the backend away from FIFOs. versitygw looks an object up by its path
// several times, so that one that is being overwritten can come out with the
// ETag of the old version and the size or data of the new one.
//
// The object's file is held open meanwhile: its inode cannot be used again,
// and versitygw never links a file a second time, so the same inode at the
// path before and after means that every look-up between saw this file.
type consistentReads struct {
	backend.Backend
	dir string // absolute; holds the buckets
}

// maxTurns bounds how often a read starts over because the object changed.
const maxTurns = 32

func (c *consistentReads) GetObject(ctx context.Context, in *s3.GetObjectInput) (*s3.GetObjectOutput, error) {
	if !c.pathNamesObject(in.Bucket, in.Key, in.VersionId) {
		return c.Backend.GetObject(ctx, in)
	}
	for range maxTurns {
		f, fi, err := c.open(*in.Bucket, *in.Key)
		if err != nil {
			f = nil
		} else if !isObject(fi) {
			f.Close()
			return nil, s3err.GetAPIError(s3err.ErrNoSuchKey)
		}
		out, err := c.Backend.GetObject(ctx, in)
		if f == nil {
			if err != nil {
				return out, err
			}
			closeBody(out) // it was created meanwhile: again, with its file
			continue
		}
		if !c.stillAt(fi, *in.Bucket, *in.Key) {
			f.Close()
			if err == nil {
				closeBody(out)
			}
			continue
		}
		if err != nil || out.Body == nil {
			f.Close()
			return out, err
		}
		// The file itself as body lets the server use sendfile for ranges too.
		closeBody(out)
		start, _ := rangeStart(value(out.ContentRange))
		body, err := newFileBody(f, start, value(out.ContentLength))
		if err != nil {
			return nil, err
		}
		out.Body = body
		return out, nil
	}
	return nil, s3err.GetAPIError(s3err.ErrSlowDown)
}

func (c *consistentReads) HeadObject(ctx context.Context, in *s3.HeadObjectInput) (*s3.HeadObjectOutput, error) {
	if !c.pathNamesObject(in.Bucket, in.Key, in.VersionId) {
		return c.Backend.HeadObject(ctx, in)
	}
	for range maxTurns {
		f, fi, openErr := c.open(*in.Bucket, *in.Key)
		if openErr == nil && !isObject(fi) {
			f.Close()
			return nil, s3err.GetAPIError(s3err.ErrNoSuchKey)
		}
		out, err := c.Backend.HeadObject(ctx, in)
		if openErr != nil {
			if err != nil {
				return out, err
			}
			continue
		}
		same := c.stillAt(fi, *in.Bucket, *in.Key)
		f.Close()
		if same {
			return out, err
		}
	}
	return nil, s3err.GetAPIError(s3err.ErrSlowDown)
}

func (c *consistentReads) CopyObject(ctx context.Context, in s3response.CopyObjectInput) (s3response.CopyObjectOutput, error) {
	if err := c.checkSource(in.CopySource); err != nil {
		return s3response.CopyObjectOutput{}, err
	}
	return c.Backend.CopyObject(ctx, in)
}

func (c *consistentReads) UploadPartCopy(ctx context.Context, in *s3.UploadPartCopyInput) (s3response.CopyPartResult, error) {
	if err := c.checkSource(in.CopySource); err != nil {
		return s3response.CopyPartResult{}, err
	}
	return c.Backend.UploadPartCopy(ctx, in)
}

// checkSource refuses what is no object as the source of a copy. Everything else
// that may be wrong with it is the backend's to tell.
func (c *consistentReads) checkSource(source *string) error {
	if source == nil {
		return nil
	}
	bucket, key, _, err := backend.ParseCopySource(*source)
	if err != nil {
		return nil
	}
	if fi, err := os.Stat(c.path(bucket, key)); err == nil && !isObject(fi) {
		return s3err.GetAPIError(s3err.ErrNoSuchKey)
	}
	return nil
}

// isObject reports whether a file can be an object. The backend opens whatever is
// there, and to open a FIFO waits until somebody writes to it.
func isObject(fi fs.FileInfo) bool { return fi.Mode().IsRegular() || fi.IsDir() }

// pathNamesObject reports whether the request is for the version at the
// object's own path.
func (c *consistentReads) pathNamesObject(bucket, key, version *string) bool {
	return bucket != nil && key != nil && (version == nil || *version == "")
}

func (c *consistentReads) path(bucket, key string) string {
	return filepath.Join(c.dir, bucket, key)
}

func (c *consistentReads) open(bucket, key string) (*os.File, fs.FileInfo, error) {
	// Without O_NONBLOCK the open itself would wait where a FIFO is.
	f, err := os.OpenFile(c.path(bucket, key), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	fi, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, fi, nil
}

func (c *consistentReads) stillAt(fi fs.FileInfo, bucket, key string) bool {
	now, err := os.Stat(c.path(bucket, key))
	return err == nil && os.SameFile(fi, now)
}

func closeBody(out *s3.GetObjectOutput) {
	if out != nil && out.Body != nil {
		out.Body.Close()
	}
}

// inode returns the file's inode number, 0 when it has none.
func inode(fi fs.FileInfo) uint64 {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return 0
}

// rangeStart reads the first offset of a Content-Range header.
func rangeStart(contentRange string) (start int64, ok bool) {
	_, err := fmt.Sscanf(contentRange, "bytes %d-", &start)
	return start, err == nil
}

func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
