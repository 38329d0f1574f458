package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"

	"github.com/minio/minio-go/v7"
	"golang.org/x/sync/errgroup"

	"s3rdmafs/rc"
	"s3rdmafs/verbs"
)

// Read fills r.Dst from one version of an object and returns how much. It is all
// of it or an error, after which the contents are undefined. A range longer
// than one transfer is split into chunks that run in parallel. ErrChanged: the
// key has another version than r.ETag by now. With ETag "" nothing is compared.
//
// When Read returns nobody writes into r.Dst any more, unless the error wraps
// verbs.ErrUnsafe: then the memory must never be used again.
func (s *Store) Read(ctx context.Context, r ReadRequest) (int, error) {
	c := call{"Read", r.Bucket, r.Key}
	if err := checkKey(c); err != nil {
		return 0, err
	}
	n := int64(len(r.Dst.Buf))
	if n == 0 {
		return 0, nil
	}
	if r.Off < 0 || n > r.ObjectSize-r.Off {
		return 0, &Error{Op: c.op, Bucket: c.bucket, Key: c.key, Kind: ErrBadRange,
			Err: fmt.Errorf("%d bytes at %d of %d", n, r.Off, r.ObjectSize)}
	}
	pieces := split(n, s.chunkFor(r))
	if len(pieces) == 1 {
		if err := s.readChunk(ctx, c, r, r.Off, r.Dst); err != nil {
			return 0, err
		}
		return int(n), nil
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(s.o.Parallel)
	var unsafe error
	var mu sync.Mutex
	for _, p := range pieces {
		g.Go(func() error {
			if err := gctx.Err(); err != nil {
				return &Error{Op: c.op, Bucket: c.bucket, Key: c.key, Kind: err}
			}
			err := s.readChunk(gctx, c, r, r.Off+p.off, r.Dst.Slice(int(p.off), int(p.n)))
			if errors.Is(err, verbs.ErrUnsafe) {
				mu.Lock()
				unsafe = err
				mu.Unlock()
			}
			return err
		})
	}
	err := g.Wait()
	if unsafe != nil && !errors.Is(err, verbs.ErrUnsafe) {
		// Not the first error, but the one that must not get lost.
		err = &Error{Op: c.op, Bucket: c.bucket, Key: c.key, Kind: ErrRDMA, Err: errors.Join(err, unsafe)}
	}
	if err != nil {
		return 0, err
	}
	return int(n), nil
}

// chunkFor is the largest transfer for a read, by the transport it will
// probably use.
func (s *Store) chunkFor(r ReadRequest) int64 {
	if s.o.RDMA != nil && s.o.Mode != ModeOff && r.Dst.MR != nil {
		chunk := min(s.o.RDMAChunkSize, s.o.RDMA.MaxTransfer(rc.OpGet))
		if ok, _ := s.o.RDMA.EligibleGet(r.Off, min(int64(len(r.Dst.Buf)), chunk)); ok {
			return chunk
		}
	}
	return s.o.ChunkSize
}

type piece struct{ off, n int64 }

// split cuts n bytes into the fewest pieces of at most limit, of about equal
// length: a short last piece would be too small for RDMA and gain nothing.
func split(n, limit int64) []piece {
	count := (n + limit - 1) / limit
	page := int64(os.Getpagesize())
	size := (n + count - 1) / count
	if aligned := (size + page - 1) / page * page; aligned <= limit {
		size = aligned
	}
	pieces := make([]piece, 0, count)
	for off := int64(0); off < n; off += size {
		pieces = append(pieces, piece{off, min(size, n-off)})
	}
	return pieces
}

// readChunk moves one chunk by the transport chosen for it.
func (s *Store) readChunk(ctx context.Context, c call, r ReadRequest, off int64, seg verbs.Segment) error {
	s.count.inFlight.Add(1)
	defer s.count.inFlight.Add(-1)
	tries := s.retrier(c)
	for {
		rdma, err := s.chooseGet(c, off, seg)
		if err != nil {
			return err
		}
		if !rdma {
			return s.readHTTP(ctx, c, r, off, seg.Buf)
		}
		failure := s.readRDMA(ctx, r, off, seg)
		what, e := s.afterRDMA(ctx, c, failure)
		switch what {
		case nextDone:
			s.count.moved(dirRead, overRDMA, int64(len(seg.Buf)), true)
			s.answered(c.bucket)
			return nil
		case nextHTTP:
			if err := s.readHTTP(ctx, c, r, off, seg.Buf); err != nil {
				return err
			}
			s.o.RDMA.HTTPSucceeded(failure)
			return nil
		case nextRetry:
			if err := tries.again(ctx, e, fateRefused); err != nil {
				return err
			}
		default:
			return versionGone(e)
		}
	}
}

// versionGone turns the answer to a false If-Match into what it means for a read.
func versionGone(e *Error) *Error {
	if e.Kind != ErrPrecondition && e.Kind != ErrBadRange {
		return e
	}
	e2 := *e
	e2.Kind = ErrChanged
	return &e2
}

// errNoETag: the peer does not say which version it sent, so it cannot be believed.
var errNoETag = errors.New("answer without ETag")

// readRDMA makes one transfer and compares versions. The precondition goes along
// only where the answers have no ETag: else comparing afterwards is as good
// and asks nothing of the server.
func (s *Store) readRDMA(ctx context.Context, r ReadRequest, off int64, seg verbs.Segment) error {
	q := rc.GetRequest{Bucket: r.Bucket, Key: r.Key, Offset: off, Dst: seg}
	if s.noETags.Load() {
		q.IfMatch = r.ETag
	}
	res, err := s.o.RDMA.Get(ctx, q)
	if err != nil && r.RDMAFailed != nil && toldPeer(err) {
		r.RDMAFailed(err)
	}
	fail := func(action rc.Action, err error) error {
		return &rc.Error{Op: rc.OpGet, Phase: rc.PhaseFinal, Action: action, Err: err}
	}
	switch {
	case err != nil:
		return err
	case r.ETag != "" && res.ETag == "" && q.IfMatch == "":
		s.noETags.Store(true)
		return fail(rc.ActionHTTP, errNoETag)
	case r.ETag != "" && res.ETag != "" && res.ETag != r.ETag:
		return &rc.Error{Op: rc.OpGet, Phase: rc.PhaseFinal, Action: rc.ActionFail, Status: http.StatusPreconditionFailed,
			Err: fmt.Errorf("version %s, want %s", res.ETag, r.ETag)}
	case res.N != int64(len(seg.Buf)):
		return fail(rc.ActionHTTP, fmt.Errorf("%d bytes of %d", res.N, len(seg.Buf)))
	}
	return nil
}

// readHTTP fills buf from off on. A broken answer is continued where it broke.
func (s *Store) readHTTP(ctx context.Context, c call, r ReadRequest, off int64, buf []byte) error {
	tries := s.retrier(c)
	done := 0
	for {
		n, err := s.getOnce(ctx, r, off+int64(done), buf[done:])
		done += n
		if err == nil {
			s.count.moved(dirRead, overHTTP, int64(len(buf)), int64(len(buf)) >= s.o.RDMAMinSize)
			s.answered(c.bucket)
			return nil
		}
		if n > 0 {
			tries.progress()
		}
		e, f := s.judge(ctx, c, err)
		if err := tries.again(ctx, versionGone(e), f); err != nil {
			return err
		}
	}
}

// getOnce makes one GET straight into buf and returns how many bytes of the right
// version arrived.
func (s *Store) getOnce(ctx context.Context, r ReadRequest, off int64, buf []byte) (int, error) {
	ctx, w, cancel := withWatchdog(ctx, s.o.Timeout)
	defer cancel()
	body, err := s.openRange(ctx, r, off, int64(len(buf)))
	if err != nil {
		return 0, w.explain(ctx, err)
	}
	defer body.Close()
	n, err := io.ReadFull(watched{body, w}, buf)
	return n, w.explain(ctx, err)
}

// openRange starts a GET and checks the head of its answer.
func (s *Store) openRange(ctx context.Context, r ReadRequest, off, n int64) (io.ReadCloser, error) {
	var o minio.GetObjectOptions
	if r.ETag != "" {
		if err := o.SetMatchETag(r.ETag); err != nil {
			return nil, err
		}
	}
	whole := off == 0 && n == r.ObjectSize
	if !whole {
		if err := o.SetRange(off, off+n-1); err != nil {
			return nil, err
		}
	}
	body, info, h, err := s.core.GetObject(ctx, r.Bucket, r.Key, o)
	if err != nil {
		return nil, err
	}
	if err := checkAnswer(r, whole, info, h); err != nil {
		body.Close()
		return nil, err
	}
	return body, nil
}

// checkAnswer compares version and size; the range itself was checked by guard.
func checkAnswer(r ReadRequest, whole bool, info minio.ObjectInfo, h http.Header) error {
	changed := func(format string, args ...any) error {
		return &Error{Op: "Read", Bucket: r.Bucket, Key: r.Key, Kind: ErrChanged, Err: fmt.Errorf(format, args...)}
	}
	switch {
	case r.ETag != "" && info.ETag == "":
		return fmt.Errorf("%w: %w", ErrBadAnswer, errNoETag)
	case r.ETag != "" && info.ETag != r.ETag:
		return changed("version %s, want %s", info.ETag, r.ETag)
	}
	size := info.Size
	if !whole {
		_, size, _ = parseContentRange(h.Get("Content-Range"))
	}
	if size >= 0 && size != r.ObjectSize {
		return changed("%d bytes, want %d", size, r.ObjectSize)
	}
	return nil
}
