package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3api/utils"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"s3rdmafs/rc"
	"s3rdmafs/token"
)

// defaultContentType is what versitygw gives an object without one.
const defaultContentType = "binary/octet-stream"

// objects is the rc server's view of the backend.
type objects struct {
	g *Gateway
}

var _ rc.Objects = objects{}

// Authorize takes the steps of the S3 operation: names, ACL and owner, policy,
// read-only mode, and for an overwrite the object's lock.
func (s objects) Authorize(ctx context.Context, p rc.Principal, op rc.Op, t token.Target) error {
	return s.g.rcError(s.authorize(ctx, p, op, t))
}

func (s objects) authorize(ctx context.Context, p rc.Principal, op rc.Op, t token.Target) error {
	c := p.Value.(*caller)
	if !utils.IsValidBucketName(t.Bucket) {
		return s3err.GetBucketErr(s3err.ErrInvalidBucketName, t.Bucket)
	}
	if !utils.IsObjectNameValid(t.Key) {
		return s3err.GetAPIError(s3err.ErrBadRequest)
	}
	data, err := s.g.be.GetBucketAcl(ctx, &s3.GetBucketAclInput{Bucket: &t.Bucket})
	if err != nil {
		return err
	}
	acl, err := auth.ParseACL(data)
	if err != nil {
		return err
	}
	if acl.Owner == "" {
		acl.Owner = s.g.opts.AccessKey
	}
	access := auth.AccessOptions{
		Acl:           acl,
		AclPermission: auth.PermissionRead,
		IsRoot:        c.root,
		Acc:           c.account,
		Bucket:        t.Bucket,
		Object:        t.Key,
		Actions:       []auth.Action{auth.GetObjectAction},
		Readonly:      s.g.opts.ReadOnly,
		Iam:           s.g.iam,
	}
	switch {
	case op == token.OpPut:
		access.AclPermission = auth.PermissionWrite
		access.Actions = []auth.Action{auth.PutObjectAction}
	case t.VersionID != "":
		access.Actions = []auth.Action{auth.GetObjectVersionAction}
	}
	if err := auth.VerifyAccess(c.ctx, s.g.be, access); err != nil {
		return err
	}
	if op == token.OpPut && !t.IsPart() {
		return auth.CheckObjectAccess(c.ctx, t.Bucket, c.account, []types.ObjectIdentifier{{Key: &t.Key}},
			auth.BypassOverwrite, false, s.g.be, s.g.iam, true)
	}
	return nil
}

// OpenRange opens part of one version of the object.
func (s objects) OpenRange(ctx context.Context, p rc.Principal, t token.Target, off, size int64, c rc.Conditions) (rc.Range, error) {
	if s.g.files != "" && t.Plain() && !strings.HasSuffix(t.Key, "/") {
		if r, err, ok := s.openFile(t, off, size, c); ok {
			return r, s.g.rcError(err)
		}
	}
	r, err := s.getObject(withAccount(ctx, p), t, off, size, c)
	return r, s.g.rcError(err)
}

// openFile opens the file of an object itself: versitygw looks at a dozen
// attributes on the way, and reads the ETag from another file descriptor than
// the data. It reports false when the backend had better tell what is wrong.
func (s objects) openFile(t token.Target, off, size int64, c rc.Conditions) (r rc.Range, err error, ok bool) {
	// A FIFO put there by hand must not hold the request up.
	f, err := os.OpenFile(filepath.Join(s.g.files, t.Bucket, t.Key), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return rc.Range{}, nil, false
	}
	defer func() {
		if !ok || err != nil {
			f.Close()
		}
	}()
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() {
		return rc.Range{}, nil, false
	}
	etag, err := xattrStore{}.RetrieveAttribute(f, t.Bucket, t.Key, etagAttr)
	if err != nil {
		return rc.Range{}, nil, false
	}
	if err := backend.EvaluatePreconditions(string(etag), fi.ModTime(), backend.PreConditions{
		IfMatch:     optional(c.IfMatch),
		IfNoneMatch: optional(c.IfNoneMatch),
	}); err != nil {
		return rc.Range{}, err, true
	}
	if off >= fi.Size() {
		return rc.Range{}, s3err.GetInvalidRangeErr(rangeHeader(off, size), fi.Size()), true
	}
	if _, err := f.Seek(off, io.SeekStart); err != nil {
		return rc.Range{}, err, true
	}
	n := min(size, fi.Size()-off)
	return rc.Range{
		Size:   n,
		ETag:   token.UnquoteETag(string(etag)),
		Reader: &steadyFile{file: f, was: fi, left: n},
	}, nil, true
}

// steadyFile reads part of an object's file. versitygw never writes to a file
// that is in place, but others who share the directory can; then the bytes may be
// of no version at all, and the last of them come with an error instead.
type steadyFile struct {
	file *os.File
	was  fs.FileInfo // before the first byte
	left int64
}

func (f *steadyFile) Read(p []byte) (int, error) {
	if f.left <= 0 {
		return 0, io.EOF
	}
	n, err := f.file.Read(p[:min(int64(len(p)), f.left)])
	f.left -= int64(n)
	if err == nil && f.left > 0 {
		return n, nil
	}
	now, statErr := f.file.Stat()
	switch {
	case statErr != nil:
		return 0, statErr
	case !unchanged(f.was, now):
		return 0, &rc.S3Error{Status: http.StatusServiceUnavailable, Code: "SlowDown", Message: "The object was being changed while it was read."}
	}
	return n, err
}

func (f *steadyFile) Close() error { return f.file.Close() }

// unchanged compares two looks at a file. An object that is overwritten or
// deleted loses its link, which changes the ctime but not what is being read.
func unchanged(was, now fs.FileInfo) bool {
	a, aok := was.Sys().(*syscall.Stat_t)
	b, bok := now.Sys().(*syscall.Stat_t)
	return aok && bok && a.Size == b.Size && a.Mtim == b.Mtim && (a.Ctim == b.Ctim || a.Nlink != b.Nlink)
}

func (s objects) getObject(ctx context.Context, t token.Target, off, size int64, c rc.Conditions) (rc.Range, error) {
	rng := rangeHeader(off, size)
	out, err := s.g.be.GetObject(ctx, &s3.GetObjectInput{
		Bucket:      &t.Bucket,
		Key:         &t.Key,
		VersionId:   &t.VersionID,
		Range:       &rng,
		IfMatch:     s.condition(c.IfMatch),
		IfNoneMatch: s.condition(c.IfNoneMatch),
	})
	if err != nil {
		return rc.Range{}, err
	}
	if out.Body == nil {
		return rc.Range{}, s3err.GetInvalidRangeErr(rng, 0)
	}
	n := value(out.ContentLength)
	// A service that does not know ranges sends the object from its start.
	if start, ok := rangeStart(value(out.ContentRange)); (ok && start != off) || (!ok && off != 0) {
		out.Body.Close()
		return rc.Range{}, rc.ErrUseHTTP
	}
	if n = min(n, size); n <= 0 {
		out.Body.Close()
		return rc.Range{}, s3err.GetInvalidRangeErr(rng, 0)
	}
	return rc.Range{
		Size:      n,
		ETag:      token.UnquoteETag(value(out.ETag)),
		VersionID: value(out.VersionId),
		Reader:    limited{io.LimitReader(out.Body, n), out.Body},
	}, nil
}

// Store stores staging memory as an object or a part.
func (s objects) Store(ctx context.Context, p rc.Principal, t token.Target, data []byte, o rc.StoreOptions) (rc.Stored, error) {
	ctx = withAccount(ctx, p)
	if t.IsPart() {
		st, err := s.uploadPart(ctx, t, data)
		return st, s.g.rcError(err)
	}
	st, err := s.putObject(ctx, t, data, o)
	return st, s.g.rcError(err)
}

func (s objects) putObject(ctx context.Context, t token.Target, data []byte, o rc.StoreOptions) (rc.Stored, error) {
	contentType := o.ContentType
	if contentType == "" {
		contentType = defaultContentType
	}
	n := int64(len(data))
	res, err := s.g.be.PutObject(ctx, s3response.PutObjectInput{
		Bucket:        &t.Bucket,
		Key:           &t.Key,
		ContentLength: &n,
		ContentType:   &contentType,
		Metadata:      o.Meta,
		Body:          s.body(data),
		IfMatch:       s.condition(o.IfMatch),
		IfNoneMatch:   optional(o.IfNoneMatch),
	})
	if err != nil {
		return rc.Stored{}, err
	}
	return rc.Stored{ETag: token.UnquoteETag(res.ETag), VersionID: res.VersionID}, nil
}

func (s objects) uploadPart(ctx context.Context, t token.Target, data []byte) (rc.Stored, error) {
	part := int32(t.PartNumber)
	n := int64(len(data))
	upload := func(body io.Reader) (*s3.UploadPartOutput, error) {
		return s.g.be.UploadPart(ctx, &s3.UploadPartInput{
			Bucket:        &t.Bucket,
			Key:           &t.Key,
			UploadId:      &t.UploadID,
			PartNumber:    &part,
			ContentLength: &n,
			Body:          body,
		})
	}
	res, err := upload(s.body(data))
	if isChecksumMismatch(err) {
		// The upload was begun with another checksum: let the backend compute it.
		res, err = upload(bytes.NewReader(data))
	}
	if err != nil {
		return rc.Stored{}, err
	}
	return rc.Stored{ETag: token.UnquoteETag(value(res.ETag))}, nil
}

// body wraps staging memory for the backend. The s3 backend wants to seek.
func (s objects) body(data []byte) io.Reader {
	if s.g.opts.Backend == BackendS3 {
		return bytes.NewReader(data)
	}
	return &stagedBody{data: data}
}

// condition returns an ETag as the backend takes it: posix compares the bare
// one, a service is sent what a client would send.
func (s objects) condition(etag string) *string {
	if etag == "" {
		return nil
	}
	if s.g.opts.Backend == BackendS3 && etag != "*" {
		etag = token.QuoteETag(etag)
	}
	return &etag
}

// isChecksumMismatch reports whether the backend refused a part because its
// checksum is not of the kind that the upload was begun with.
func isChecksumMismatch(err error) bool {
	var known s3err.S3Error
	return errors.As(err, &known) && strings.HasPrefix(known.BaseError().Description, "Checksum Type mismatch")
}

// withAccount tells versitygw's backends for whom they act; they look the
// account up under the name that its middlewares use.
func withAccount(ctx context.Context, p rc.Principal) context.Context {
	//lint:ignore SA1029 the key is versitygw's
	return context.WithValue(ctx, string(utils.ContextKeyAccount), p.Value.(*caller).account)
}

// limited reads a part of what it closes.
type limited struct {
	io.Reader
	io.Closer
}

func rangeHeader(off, size int64) string {
	return fmt.Sprintf("bytes=%d-%d", off, off+size-1)
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
