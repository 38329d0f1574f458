package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"golang.org/x/sync/errgroup"
)

// maxSingleCopy is the largest object of one CopyObject, bytes.
const maxSingleCopy = 5 << 30

// copyPartSize of larger ones: 5 TiB fit in MaxParts.
const copyPartSize = 1 << 30

// kept are the headers of an object that replacing its metadata would lose.
var kept = []string{"Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Expires"}

// Copy copies an object on the server, whole or not at all; ErrChanged when the
// source has another version than SrcETag. With Meta the new object has exactly
// that user metadata, so that copying an object to itself changes its metadata only.
// Not every server can hold Cond against other writers; what stands against it
// when Copy begins is always found. The result's ModTime is zero when the object was
// made of parts.
func (s *Store) Copy(ctx context.Context, r CopyRequest) (Info, error) {
	if r.DstBucket == "" {
		r.DstBucket = r.Bucket
	}
	c := call{"Copy", r.DstBucket, r.DstKey}
	if err := checkKey(c); err != nil {
		return Info{}, err
	}
	src, err := s.stat(ctx, call{c.op, r.Bucket, r.Key})
	if err != nil {
		return Info{}, err
	}
	if r.SrcETag == "" {
		r.SrcETag = src.ETag
	} else if src.ETag != r.SrcETag {
		return Info{}, &Error{Op: c.op, Bucket: r.Bucket, Key: r.Key, Kind: ErrChanged,
			Err: fmt.Errorf("version %s, want %s", src.ETag, r.SrcETag)}
	}
	if err := s.holds(ctx, c, r.Cond); err != nil {
		return Info{}, err
	}
	cp := copying{s: s, c: c, r: r, src: src, from: infoOf(r.Bucket, r.Key, src)}
	if src.Size > s.maxSingleCopy {
		return cp.byParts(ctx)
	}
	return cp.single(ctx)
}

// holds checks a condition on the destination.
func (s *Store) holds(ctx context.Context, c call, cond Cond) error {
	if cond.IsZero() {
		return nil
	}
	there, err := s.Head(ctx, c.bucket, c.key)
	e := &Error{Op: c.op, Bucket: c.bucket, Key: c.key}
	switch {
	case errors.Is(err, ErrNotFound):
		if cond.IfMatch == "" {
			return nil
		}
		e.Kind = ErrPrecondition
	case err != nil:
		return renamed(err, c.op)
	case cond.IfAbsent:
		e.Kind = ErrExists
	case there.ETag != cond.IfMatch:
		e.Kind = ErrPrecondition
	default:
		return nil
	}
	return e
}

// copying is one Copy under way.
type copying struct {
	s    *Store
	c    call
	r    CopyRequest
	src  minio.ObjectInfo
	from Info
}

// meta and contentType of the copy.
func (cp *copying) meta() map[string]string {
	if cp.r.Meta != nil {
		return cp.r.Meta
	}
	return cp.from.Meta
}

func (cp *copying) contentType() string {
	if cp.r.Meta != nil && cp.r.ContentType != "" {
		return cp.r.ContentType
	}
	return cp.from.ContentType
}

func (cp *copying) header() map[string]string {
	h := make(map[string]string)
	if cp.r.SrcETag != "" {
		h["x-amz-copy-source-if-match"] = quoted(cp.r.SrcETag)
	}
	if cp.r.Cond.IfMatch != "" {
		h["If-Match"] = quoted(cp.r.Cond.IfMatch)
	}
	if cp.r.Cond.IfAbsent {
		h["If-None-Match"] = "*"
	}
	if cp.r.Meta == nil {
		return h
	}
	h["x-amz-metadata-directive"] = "REPLACE"
	maps.Copy(h, amzMeta(cp.r.Meta))
	h["Content-Type"] = cp.contentType()
	for _, name := range kept {
		if v := cp.src.Headers.Get(name); v != "" {
			h[name] = v
		}
	}
	if v := cp.from.StorageClass; v != "" && v != "STANDARD" {
		h["x-amz-storage-class"] = v
	}
	return h
}

func (cp *copying) single(ctx context.Context) (Info, error) {
	s, r := cp.s, cp.r
	header := cp.header()
	tries := s.retrier(cp.c)
	uncertain := false
	for {
		var res minio.ObjectInfo
		err := within(ctx, s.o.CommitTimeout, func(ctx context.Context) (err error) {
			res, err = s.core.CopyObject(ctx, r.Bucket, r.Key, r.DstBucket, r.DstKey, header, minio.CopySrcOptions{}, minio.PutObjectOptions{})
			if err == nil && res.ETag == "" {
				err = fmt.Errorf("%w: %w", ErrBadAnswer, errNoETag)
			}
			return err
		})
		if err == nil {
			s.answered(cp.c.bucket)
			return cp.result(res.ETag, res.LastModified), nil
		}
		e, f := s.judge(ctx, cp.c, err)
		if cp.isTooLarge(e) {
			return cp.byParts(ctx)
		}
		uncertain = uncertain || f == fateUncertain
		if uncertain && (f == fateUncertain || errors.Is(e, ErrPrecondition)) {
			there, err := s.Head(ctx, r.DstBucket, r.DstKey)
			switch {
			case err == nil && cp.isCopy(there):
				return there, nil
			case err != nil && !errors.Is(err, ErrNotFound):
				return Info{}, renamed(err, cp.c.op)
			}
		}
		if errors.Is(e, ErrPrecondition) {
			return Info{}, cp.whichCondition(ctx, e)
		}
		if err := tries.again(ctx, e, f); err != nil {
			return Info{}, err
		}
	}
}

// isTooLarge is for servers with a smaller limit than S3's.
func (cp *copying) isTooLarge(e *Error) bool {
	return cp.src.Size > MinPartSize && (e.Code == "EntityTooLarge" ||
		e.Code == "InvalidRequest" && e.Err != nil && strings.Contains(e.Err.Error(), "larger than"))
}

// isCopy reports whether an uncertain copy arrived. Only equal ETags prove equal
// bytes; a copy that cannot be proved is reported as failed, and nothing is lost.
func (cp *copying) isCopy(there Info) bool {
	return there.ETag == cp.from.ETag && there.Size == cp.from.Size && sameMeta(there.Meta, cp.meta())
}

// whichCondition finds out which side a 412 is about.
func (cp *copying) whichCondition(ctx context.Context, e *Error) error {
	e2 := *e
	e2.Kind = ErrChanged
	if cp.r.Cond.IsZero() {
		return &e2
	}
	if src, err := cp.s.Head(ctx, cp.r.Bucket, cp.r.Key); err != nil || src.ETag != cp.r.SrcETag {
		return &e2
	}
	return cp.s.condFailed(e, cp.r.Cond)
}

func (cp *copying) byParts(ctx context.Context) (Info, error) {
	s, r := cp.s, cp.r
	o := minio.PutObjectOptions{
		ContentType:        cp.contentType(),
		CacheControl:       cp.src.Headers.Get("Cache-Control"),
		ContentDisposition: cp.src.Headers.Get("Content-Disposition"),
		ContentEncoding:    cp.src.Headers.Get("Content-Encoding"),
		ContentLanguage:    cp.src.Headers.Get("Content-Language"),
		UserMetadata:       amzMeta(cp.meta()),
	}
	if t, err := http.ParseTime(cp.src.Headers.Get("Expires")); err == nil {
		o.Expires = t
	}
	if v := cp.from.StorageClass; v != "STANDARD" {
		o.StorageClass = v
	}
	u, err := s.begin(ctx, cp.c, o)
	if err != nil {
		return Info{}, err
	}
	u.meta, u.contentType = maps.Clone(cp.meta()), cp.contentType()
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(s.o.Parallel)
	for i, p := range split(cp.src.Size, s.copyPartSize) {
		g.Go(func() error {
			return u.partCopy(gctx, i+1, r.Bucket, r.Key, r.SrcETag, p.off, p.n)
		})
	}
	info := Info{}
	if err = g.Wait(); err == nil {
		info, err = u.Complete(ctx, r.Cond)
	}
	if err != nil {
		// The caller may be gone already; what was copied must go too.
		actx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.o.Timeout)
		defer cancel()
		if aerr := u.Abort(actx); aerr != nil {
			s.log.Warn("upload not aborted", "bucket", u.bucket, "key", u.key, "err", aerr)
		}
		return Info{}, renamed(err, cp.c.op)
	}
	return info, nil
}

func (cp *copying) result(etag string, mod time.Time) Info {
	return Info{
		Bucket: cp.r.DstBucket, Key: cp.r.DstKey, Size: cp.src.Size, ETag: trimETag(etag), ModTime: mod.Truncate(time.Second),
		Meta: maps.Clone(cp.meta()), ContentType: cp.contentType(), StorageClass: cp.from.StorageClass,
	}
}

func quoted(etag string) string { return `"` + etag + `"` }
