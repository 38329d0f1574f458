package store

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"s3rdmafs/rc"
	"s3rdmafs/verbs"
)

// Put stores one object whole, or not at all. The result's ModTime is zero:
// S3 does not tell it. ErrPrecondition and ErrExists mean that Cond does not hold and
// nothing was stored.
//
// When the answer was lost, Put looks whether its object is there before it
// repeats anything. An error that wraps verbs.ErrUnsafe means that the memory of
// r.Src must never be used again.
func (s *Store) Put(ctx context.Context, r PutRequest) (Info, error) {
	c := call{"Put", r.Bucket, r.Key}
	if err := checkKey(c); err != nil {
		return Info{}, err
	}
	if n := len(r.Src.Buf); n > MaxSinglePut {
		return Info{}, &Error{Op: c.op, Bucket: c.bucket, Key: c.key, Kind: ErrTooLarge, Err: fmt.Errorf("%d bytes", n)}
	}
	s.count.inFlight.Add(1)
	defer s.count.inFlight.Add(-1)
	p := put{s: s, c: c, r: r, started: time.Now(), tries: s.retrier(c)}
	etag, err := p.run(ctx)
	if err != nil {
		return Info{}, err
	}
	s.answered(c.bucket)
	if etag == "" {
		return s.Head(ctx, r.Bucket, r.Key)
	}
	return Info{
		Bucket: r.Bucket, Key: r.Key, Size: int64(len(r.Src.Buf)), ETag: etag,
		Meta: maps.Clone(r.Meta), ContentType: r.ContentType,
	}, nil
}

// put is one Put under way.
type put struct {
	s         *Store
	c         call
	r         PutRequest
	started   time.Time
	tries     *retrier
	uncertain bool  // an earlier try may have stored the object
	refused   error // the failure of RDMA that HTTP makes up for
}

// run tries until the object is stored, or is known not to be.
func (p *put) run(ctx context.Context) (etag string, err error) {
	q := rc.PutRequest{
		Bucket: p.r.Bucket, Key: p.r.Key, Src: p.r.Src, Meta: p.r.Meta, ContentType: p.r.ContentType,
		IfMatch: p.r.Cond.IfMatch,
	}
	if p.r.Cond.IfAbsent {
		q.IfNoneMatch = "*"
	}
	rdma, err := p.s.choosePut(p.c, q)
	if err != nil {
		return "", err
	}
	for {
		var e *Error
		var f fate
		if rdma {
			etag, e, f, rdma = p.overRDMA(ctx, q)
			if e == nil && !rdma {
				continue
			}
		} else {
			etag, e, f = p.overHTTP(ctx)
		}
		if e == nil {
			return etag, nil
		}
		e = p.s.condFailed(e, p.r.Cond)
		if f == fateUncertain || p.uncertain && (errors.Is(e, ErrPrecondition) || errors.Is(e, ErrExists)) {
			p.uncertain = true
			etag, stored, err := p.look(ctx)
			switch {
			case err != nil:
				return "", err
			case stored:
				return etag, nil
			}
		}
		if err := p.tries.again(ctx, e, f); err != nil {
			return "", err
		}
	}
}

// condFailed tells apart what 412 and 404 mean for a conditional write.
func (s *Store) condFailed(e *Error, c Cond) *Error {
	kind := e.Kind
	switch {
	case c.IfAbsent && kind == ErrPrecondition:
		kind = ErrExists
	case c.IfMatch != "" && kind == ErrNotFound:
		kind = ErrPrecondition
	default:
		return e
	}
	e2 := *e
	e2.Kind = kind
	return &e2
}

// overRDMA makes one RDMA transfer. With again false and no error the same is to
// be done by HTTP; else again says whether the next try is by RDMA too.
func (p *put) overRDMA(ctx context.Context, q rc.PutRequest) (etag string, e *Error, f fate, again bool) {
	res, err := p.s.o.RDMA.Put(ctx, q)
	what, e := p.s.afterRDMA(ctx, p.c, err)
	must := p.s.o.Mode == ModeRequire
	switch what {
	case nextDone:
		p.s.count.moved(dirWrite, overRDMA, int64(len(p.r.Src.Buf)), true)
		return res.ETag, nil, 0, true
	case nextHTTP:
		p.refused = err
		return "", nil, 0, false
	case nextRetry:
		return "", e, fateRefused, true
	case nextLook:
		return "", e, fateUncertain, must
	}
	return "", e, fateFinal, must
}

func (p *put) overHTTP(ctx context.Context) (string, *Error, fate) {
	etag, err := p.s.putOnce(ctx, p.r)
	if err != nil {
		e, f := p.s.judge(ctx, p.c, err)
		return "", e, f
	}
	n := int64(len(p.r.Src.Buf))
	p.s.count.moved(dirWrite, overHTTP, n, n >= p.s.o.RDMAMinSize)
	if p.refused != nil {
		p.s.o.RDMA.HTTPSucceeded(p.refused)
	}
	return etag, nil, 0
}

// look finds out what an uncertain try left behind. Neither stored nor an
// error: the key is as it was, and the put may be repeated.
func (p *put) look(ctx context.Context) (etag string, stored bool, err error) {
	info, err := p.s.Head(ctx, p.r.Bucket, p.r.Key)
	switch {
	case errors.Is(err, ErrNotFound):
		return "", false, nil
	case err != nil:
		return "", false, renamed(err, p.c.op)
	}
	ours, err := p.isOurs(ctx, info)
	switch {
	case err != nil:
		return "", false, err
	case ours:
		return info.ETag, true, nil
	}
	e := &Error{Op: p.c.op, Bucket: p.c.bucket, Key: p.c.key, Err: errors.New("another object is there after a try without answer")}
	switch {
	case p.r.Cond.IfAbsent:
		e.Kind = ErrExists
	case p.r.Cond.IfMatch != "" && info.ETag != p.r.Cond.IfMatch:
		e.Kind = ErrPrecondition
	default:
		return "", false, nil
	}
	return "", false, e
}

// isOurs reports whether what is stored is what was to be stored: equal
// bytes and equal metadata. Who stored it does not matter then.
func (p *put) isOurs(ctx context.Context, info Info) (bool, error) {
	src := p.r.Src.Buf
	if info.Size != int64(len(src)) || !sameMeta(info.Meta, p.r.Meta) ||
		p.r.ContentType != "" && info.ContentType != p.r.ContentType {
		return false, nil
	}
	if sum := md5.Sum(src); info.ETag == hex.EncodeToString(sum[:]) {
		return true, nil
	}
	if info.ETag == p.r.Cond.IfMatch || info.ModTime.Before(p.started.Add(-maxClockSkew)) {
		return false, nil
	}
	// The ETag of an encrypted object is not its MD5.
	return p.s.sameBytes(ctx, info, src)
}

// maxClockSkew between client and server that SigV4 allows.
const maxClockSkew = 15 * time.Minute

func sameMeta(got, want map[string]string) bool {
	for k, v := range want {
		if got[strings.ToLower(k)] != v {
			return false
		}
	}
	return len(got) == len(want)
}

// sameBytes reads an object and compares.
func (s *Store) sameBytes(ctx context.Context, info Info, want []byte) (bool, error) {
	r := ReadRequest{Bucket: info.Bucket, Key: info.Key, ETag: info.ETag, ObjectSize: info.Size}
	buf := make([]byte, min(len(want), 1<<20))
	for off := 0; off < len(want); off += len(buf) {
		b := buf[:min(len(buf), len(want)-off)]
		err := s.readHTTP(ctx, call{"Read", r.Bucket, r.Key}, r, int64(off), b)
		if errors.Is(err, ErrChanged) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if !bytes.Equal(b, want[off:off+len(b)]) {
			return false, nil
		}
	}
	return true, nil
}

// commitRate is how fast a server at least hashes and stores what it received, in
// bytes per second.
const commitRate = 16 << 20

func (s *Store) putIdle(n int) time.Duration {
	return s.o.Timeout + time.Duration(n/commitRate)*time.Second
}

// putOnce makes one PutObject.
func (s *Store) putOnce(ctx context.Context, r PutRequest) (etag string, err error) {
	ctx, w, cancel := withWatchdog(ctx, s.putIdle(len(r.Src.Buf)))
	defer cancel()
	o := minio.PutObjectOptions{
		ContentType: r.ContentType, UserMetadata: amzMeta(r.Meta), DisableContentSha256: true,
	}
	r.Cond.apply(&o)
	info, err := s.core.PutObject(ctx, r.Bucket, r.Key, s.body(r.Src, w), int64(len(r.Src.Buf)), "", s.payloadHash(r.Src), o)
	return info.ETag, w.explain(ctx, err)
}

func (c Cond) apply(o *minio.PutObjectOptions) {
	if c.IfMatch != "" {
		o.SetMatchETag(c.IfMatch)
	}
	if c.IfAbsent {
		o.SetMatchETagExcept("*")
	}
}

// amzMeta adds the prefix, without which minio takes a key like "expires" for a
// header of its own.
func amzMeta(meta map[string]string) map[string]string {
	out := make(map[string]string, len(meta))
	for k, v := range meta {
		out["x-amz-meta-"+k] = v
	}
	return out
}

func (s *Store) body(src verbs.Segment, w *watchdog) io.Reader {
	return watched{bytes.NewReader(src.Buf), w}
}

// payloadHash is signed along over plain HTTP, where nothing else protects the
// bytes; one hash ahead costs both sides less than minio's default, signatures of
// chunks. Under TLS the payload goes unsigned ("").
func (s *Store) payloadHash(src verbs.Segment) string {
	if s.c.Endpoint.Scheme == "https" {
		return ""
	}
	sum := sha256.Sum256(src.Buf)
	return hex.EncodeToString(sum[:])
}
