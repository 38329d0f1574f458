package store

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"

	"s3rdmafs/rc"
	"s3rdmafs/verbs"
)

// Upload is one multipart upload. Nothing of it shows under its key before
// Complete; Abort frees what it stored.
type Upload struct {
	s           *Store
	bucket, key string
	id          string
	meta        map[string]string
	contentType string

	mu    sync.Mutex
	parts map[int]part
}

type part struct {
	etag string
	size int64
}

// UploadInfo is an unfinished multipart upload.
type UploadInfo struct {
	Key, ID string
	Started time.Time
}

// Begin starts a multipart upload.
func (s *Store) Begin(ctx context.Context, bucket, key string, meta map[string]string, contentType string) (*Upload, error) {
	o := minio.PutObjectOptions{ContentType: contentType, UserMetadata: amzMeta(meta)}
	u, err := s.begin(ctx, call{"Begin", bucket, key}, o)
	if err != nil {
		return nil, err
	}
	u.meta, u.contentType = maps.Clone(meta), contentType
	return u, nil
}

// begin may be repeated: a start whose answer was lost leaves an empty upload behind,
// of which only Uploads tells.
func (s *Store) begin(ctx context.Context, c call, o minio.PutObjectOptions) (*Upload, error) {
	if err := checkKey(c); err != nil {
		return nil, err
	}
	u := &Upload{s: s, bucket: c.bucket, key: c.key, parts: make(map[int]part)}
	err := s.do(ctx, c, s.o.Timeout, func(ctx context.Context) (err error) {
		u.id, err = s.core.NewMultipartUpload(ctx, c.bucket, c.key, o)
		if err == nil && u.id == "" {
			err = fmt.Errorf("%w: no upload id", ErrBadAnswer)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return u, nil
}

// ID is the upload id.
func (u *Upload) ID() string { return u.id }

func (u *Upload) call(op string) call { return call{op, u.bucket, u.key} }

func (u *Upload) setPart(n int, p part) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.parts[n] = p
}

// Part uploads part n (1…MaxParts) from src; a second call with the same n
// replaces the part. Calls for different parts may run in parallel. An error that
// wraps verbs.ErrUnsafe means that the memory of src must never be used again.
func (u *Upload) Part(ctx context.Context, n int, src verbs.Segment) error {
	s, c := u.s, u.call("Part")
	if n < 1 || n > MaxParts || len(src.Buf) > MaxPartSize {
		return &Error{Op: c.op, Bucket: c.bucket, Key: c.key, Kind: ErrTooLarge, Err: fmt.Errorf("part %d of %d bytes", n, len(src.Buf))}
	}
	s.count.inFlight.Add(1)
	defer s.count.inFlight.Add(-1)
	q := rc.PutRequest{Bucket: u.bucket, Key: u.key, Src: src, UploadID: u.id, PartNumber: n}
	tries := s.retrier(c)
	for {
		rdma, err := s.choosePut(c, q)
		if err != nil {
			return err
		}
		if !rdma {
			return u.partHTTP(ctx, c, n, src)
		}
		res, failure := s.o.RDMA.Put(ctx, q)
		if failure == nil && res.ETag == "" {
			// Complete needs it.
			failure = &rc.Error{Op: rc.OpPut, Phase: rc.PhaseFinal, Action: rc.ActionHTTP, Err: errNoETag}
		}
		what, e := s.afterRDMA(ctx, c, failure)
		switch what {
		case nextDone:
			s.count.moved(dirWrite, overRDMA, int64(len(src.Buf)), true)
			s.answered(c.bucket)
			u.setPart(n, part{res.ETag, int64(len(src.Buf))})
			return nil
		case nextHTTP:
			if err := u.partHTTP(ctx, c, n, src); err != nil {
				return err
			}
			s.o.RDMA.HTTPSucceeded(failure)
			return nil
		case nextRetry, nextLook:
			// Storing a part again replaces it.
			if err := tries.again(ctx, e, fateRefused); err != nil {
				return err
			}
		default:
			return e
		}
	}
}

func (u *Upload) partHTTP(ctx context.Context, c call, n int, src verbs.Segment) error {
	s := u.s
	var p minio.ObjectPart
	tries := s.retrier(c)
	for {
		err := func() (err error) {
			ctx, w, cancel := withWatchdog(ctx, s.putIdle(len(src.Buf)))
			defer cancel()
			p, err = s.core.PutObjectPart(ctx, u.bucket, u.key, u.id, n, s.body(src, w), int64(len(src.Buf)),
				minio.PutObjectPartOptions{DisableContentSha256: true, Sha256Hex: s.payloadHash(src)})
			if err == nil && p.ETag == "" {
				err = fmt.Errorf("%w: %w", ErrBadAnswer, errNoETag)
			}
			return w.explain(ctx, err)
		}()
		if err == nil {
			break
		}
		e, f := s.judge(ctx, c, err)
		if err := tries.again(ctx, e, f); err != nil {
			return err
		}
	}
	size := int64(len(src.Buf))
	s.count.moved(dirWrite, overHTTP, size, size >= s.o.RDMAMinSize)
	s.answered(c.bucket)
	u.setPart(n, part{p.ETag, size})
	return nil
}

// PartCopy makes part n of size bytes at off of the version etag of srcKey in the
// same bucket; ErrChanged when there is another version by now.
func (u *Upload) PartCopy(ctx context.Context, n int, srcKey, etag string, off, size int64) error {
	return u.partCopy(ctx, n, u.bucket, srcKey, etag, off, size)
}

func (u *Upload) partCopy(ctx context.Context, n int, srcBucket, srcKey, etag string, off, size int64) error {
	c := u.call("PartCopy")
	if n < 1 || n > MaxParts || size > MaxPartSize {
		return &Error{Op: c.op, Bucket: c.bucket, Key: c.key, Kind: ErrTooLarge, Err: fmt.Errorf("part %d of %d bytes", n, size)}
	}
	header := make(map[string]string)
	if etag != "" {
		header["x-amz-copy-source-if-match"] = quoted(etag)
	}
	var p minio.CompletePart
	err := u.s.do(ctx, c, u.s.o.CommitTimeout, func(ctx context.Context) (err error) {
		p, err = u.s.core.CopyObjectPart(ctx, srcBucket, srcKey, u.bucket, u.key, u.id, n, off, size, header)
		if err == nil && p.ETag == "" {
			err = fmt.Errorf("%w: %w", ErrBadAnswer, errNoETag)
		}
		return err
	})
	if err != nil {
		return sourceChanged(err)
	}
	u.setPart(n, part{trimETag(p.ETag), size})
	return nil
}

// sourceChanged is for requests whose only precondition is on the source.
func sourceChanged(err error) error {
	var e *Error
	if errors.As(err, &e) {
		return versionGone(e)
	}
	return err
}

// Complete makes the object out of the parts in order of their numbers. After
// ErrPrecondition or ErrExists nothing was stored, and the upload is still to be
// aborted. The result's ModTime is zero.
func (u *Upload) Complete(ctx context.Context, cond Cond) (Info, error) {
	s, c := u.s, u.call("Complete")
	u.mu.Lock()
	parts := maps.Clone(u.parts)
	u.mu.Unlock()
	if len(parts) == 0 {
		return Info{}, &Error{Op: c.op, Bucket: c.bucket, Key: c.key, Kind: ErrRefused, Err: errors.New("no parts")}
	}
	var list []minio.CompletePart
	var size int64
	for _, n := range slices.Sorted(maps.Keys(parts)) {
		list = append(list, minio.CompletePart{PartNumber: n, ETag: parts[n].etag})
		size += parts[n].size
	}
	info := Info{Bucket: u.bucket, Key: u.key, Size: size, Meta: maps.Clone(u.meta), ContentType: u.contentType}
	var o minio.PutObjectOptions
	cond.apply(&o)
	tries := s.retrier(c)
	uncertain := false
	for {
		err := within(ctx, s.o.CommitTimeout, func(ctx context.Context) error {
			res, err := s.core.CompleteMultipartUpload(ctx, u.bucket, u.key, u.id, list, o)
			if err == nil && res.ETag == "" {
				err = fmt.Errorf("%w: %w", ErrBadAnswer, errNoETag)
			}
			info.ETag = res.ETag
			return err
		})
		if err == nil {
			s.answered(c.bucket)
			return info, nil
		}
		e, f := s.judge(ctx, c, err)
		e = s.condFailed(e, cond)
		uncertain = uncertain || f == fateUncertain
		// An upload that is gone, and a condition that does not hold any more,
		// are what an earlier success looks like.
		if uncertain && (f == fateUncertain || errors.Is(e, ErrNoUpload) || errors.Is(e, ErrPrecondition) || errors.Is(e, ErrExists)) {
			there, err := s.Head(ctx, u.bucket, u.key)
			switch {
			case err == nil && isUploaded(there, list, size):
				info.ETag = there.ETag
				return info, nil
			case err != nil && !errors.Is(err, ErrNotFound):
				return Info{}, renamed(err, c.op)
			}
		}
		if err := tries.again(ctx, e, f); err != nil {
			return Info{}, err
		}
	}
}

// isUploaded reports whether the object was made of these parts.
func isUploaded(there Info, parts []minio.CompletePart, size int64) bool {
	h := md5.New()
	for _, p := range parts {
		sum, err := hex.DecodeString(p.ETag)
		if err != nil || len(sum) != md5.Size {
			return false
		}
		h.Write(sum)
	}
	return there.Size == size && there.ETag == fmt.Sprintf("%x-%d", h.Sum(nil), len(parts))
}

// Abort gives the upload up and frees its parts; one that is gone is no error.
// Parts that are still being sent may survive: call it after they returned.
func (u *Upload) Abort(ctx context.Context) error {
	return u.s.AbortUpload(ctx, u.bucket, u.key, u.id)
}

// AbortUpload ends an unfinished multipart upload; one that is gone is no error.
func (s *Store) AbortUpload(ctx context.Context, bucket, key, id string) error {
	c := call{"Abort", bucket, key}
	if err := checkKey(c); err != nil {
		return err
	}
	err := s.do(ctx, c, s.o.Timeout, func(ctx context.Context) error {
		return s.core.AbortMultipartUpload(ctx, bucket, key, id)
	})
	if errors.Is(err, ErrNoUpload) {
		return nil
	}
	return err
}

// HasParts reports whether an unfinished upload has a part; one that is gone has
// none.
func (s *Store) HasParts(ctx context.Context, bucket, key, id string) (bool, error) {
	c := call{"HasParts", bucket, key}
	if err := checkKey(c); err != nil {
		return false, err
	}
	var res minio.ListObjectPartsResult
	err := s.do(ctx, c, s.o.Timeout, func(ctx context.Context) (err error) {
		res, err = s.core.ListObjectParts(ctx, bucket, key, id, 0, 1)
		return err
	})
	if errors.Is(err, ErrNoUpload) {
		return false, nil
	}
	return len(res.ObjectParts) > 0, err
}

// Uploads lists the unfinished multipart uploads of keys that begin with prefix.
func (s *Store) Uploads(ctx context.Context, bucket, prefix string) ([]UploadInfo, error) {
	c := call{"Uploads", bucket, prefix}
	if err := checkNames(c); err != nil {
		return nil, err
	}
	var out []UploadInfo
	var keyMarker, idMarker string
	for {
		var res minio.ListMultipartUploadsResult
		err := s.do(ctx, c, s.o.Timeout, func(ctx context.Context) (err error) {
			res, err = s.core.ListMultipartUploads(ctx, bucket, prefix, keyMarker, idMarker, "", maxListKeys)
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, u := range res.Uploads {
			if strings.HasPrefix(u.Key, prefix) {
				out = append(out, UploadInfo{Key: u.Key, ID: u.UploadID, Started: u.Initiated})
			}
		}
		if !res.IsTruncated || res.NextKeyMarker == keyMarker && res.NextUploadIDMarker == idMarker {
			return out, nil
		}
		keyMarker, idMarker = res.NextKeyMarker, res.NextUploadIDMarker
	}
}
