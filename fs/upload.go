package fs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"s3rdmafs/cache"
	"s3rdmafs/spool"
	"s3rdmafs/store"
	"s3rdmafs/verbs"
)

const (
	// singlePut is the largest object stored by one request, bytes.
	singlePut = 8 << 20
	// firstPart is the part size of a multipart upload as long as MaxParts
	// of them are enough.
	firstPart = 16 << 20
	// fileParallel is how many parts of one file are uploaded at once.
	fileParallel = 4
	// abortTimeout bounds the clean-up of a failed upload.
	abortTimeout = 30 * time.Second
)

// partSize is the size of all parts but the last of size bytes: at most
// MaxParts of them, and no larger than what RDMA can store at once (0: no such
// limit) as long as they are enough.
func partSize(size, rdmaLimit int64) int64 {
	n := int64(firstPart)
	if rdmaLimit >= store.MinPartSize {
		n = min(n, rdmaLimit)
	}
	if least := (size + store.MaxParts - 1) / store.MaxParts; least > n {
		n = (least + 1<<20 - 1) &^ (1<<20 - 1)
	}
	return n
}

// flush stores what changed in f and returns when it is stored. An interrupted
// caller leaves the upload to itself.
func (s *filesystem) flush(ctx context.Context, f *file) syscall.Errno {
	f.mu.Lock()
	idle := !f.dirtyLocked() && f.uploading == nil && f.lost == nil
	f.mu.Unlock()
	if idle {
		return 0
	}
	c, done := s.unbounded(ctx)
	defer done()
	result := make(chan error, 1)
	s.background.Go(func() {
		err := s.upload(s.storing, f)
		if err != nil {
			s.undoMeta(f)
		}
		result <- err
	})
	select {
	case err := <-result:
		return errnoOf(err)
	case <-c.Done():
		return errnoOf(context.Cause(c))
	}
}

// snapshot is what an upload stores.
type snapshot struct {
	bucket, key string
	info        store.Info // the version it replaces
	data        bool       // else only the metadata change
	size        int64
	content     io.ReaderAt
	meta        map[string]string
	attributes  attributes // that meta has
	metaChanges uint64
	cond        store.Cond
	uploads     uploadLog
}

// upload stores what changed in f, if anything. Its error is also logged.
func (s *filesystem) upload(ctx context.Context, f *file) error {
	for {
		c, err := s.beginChange(ctx, func() []spot { return s.spotsLocked(f) })
		if err != nil {
			return err
		}
		again, err := s.uploadOnce(ctx, f, c.at)
		c.end()
		if again == nil {
			s.shelve(f)
			return err
		}
		select {
		case <-again:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// always is closed.
var always = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// uploadOnce is one attempt, while f is at the given place. again is not nil
// when there must be another one, once it is closed: f has moved, or is being
// removed, after which nothing is left to store, or everything if that fails.
func (s *filesystem) uploadOnce(ctx context.Context, f *file, at []spot) (again <-chan struct{}, err error) {
	if err := f.up.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer f.up.Release(1)
	s.mu.Lock()
	moved := !slices.Equal(s.spotsLocked(f), at)
	s.mu.Unlock()
	f.mu.Lock()
	removed := f.removed
	f.mu.Unlock()
	switch {
	case moved:
		return always, nil
	case removed != nil:
		return removed, nil
	}
	err = s.uploadHeld(ctx, f)
	f.mu.Lock()
	defer f.mu.Unlock()
	if errors.Is(err, context.Canceled) && f.removed != nil {
		return f.removed, nil
	}
	if f.handles == 0 && !f.dirtyLocked() {
		f.dropSpoolLocked()
	}
	return nil, err
}

// uploadHeld is upload for who holds f.up.
func (s *filesystem) uploadHeld(ctx context.Context, f *file) error {
	// Writers wait, so that what is stored is one state of the file.
	if err := f.io.Acquire(ctx, 1); err != nil {
		return err
	}
	defer f.io.Release(1)
	parts, cancel := context.WithCancel(ctx)
	defer cancel()

	s.mu.Lock()
	bucket, key, named := s.placeLocked(f)
	unlinked := f.unlinked
	s.mu.Unlock()
	f.mu.Lock()
	switch {
	case f.lost != nil:
		f.mu.Unlock()
		return f.lost
	case !f.dirtyLocked():
		f.mu.Unlock()
		return nil
	case unlinked:
		f.dirtyData, f.dirtyMeta = false, false
		f.mu.Unlock()
		return nil
	case !named:
		f.lost = newLostError(f, store.ErrChanged)
		f.mu.Unlock()
		s.rejournal(f)
		return f.lost
	}
	// Writing the metadata anew is no change of the content, but S3 would
	// give the object a new time.
	f.attributes.mtimeSet = f.attributes.mtimeSet || !f.dirtyData
	snap := snapshot{
		bucket: bucket, key: key, info: f.info, data: f.dirtyData, size: f.size, content: f.spool, uploads: fileUploads{f},
		meta: s.metaOf(f.info.Meta, f.attributes, f.kind()), attributes: f.attributes, metaChanges: f.metaChanges,
	}
	switch {
	case f.overwrite:
	case f.stored:
		snap.cond.IfMatch = f.info.ETag
	default:
		snap.cond.IfAbsent = true
	}
	f.uploading = cancel
	f.mu.Unlock()

	begun := time.Now()
	info, err := s.put(ctx, parts, snap)
	s.n.uploads.Add(1)

	s.mu.Lock()
	f.mu.Lock()
	f.uploading = nil
	if err == nil {
		s.storedLocked(f, snap, info, begun)
	} else {
		s.n.upErrors.Add(1)
		f.attempted = f.attempted || snap.data && !refused(err)
		f.refusedMeta = snap.metaChanges
		if errors.Is(err, store.ErrPrecondition) || errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrChanged) {
			err = s.lostLocked(f, err)
		}
	}
	f.mu.Unlock()
	s.mu.Unlock()
	s.mustJournal(f)
	if err != nil && !errors.Is(err, context.Canceled) {
		s.log.Error("file not stored", "bucket", bucket, "key", key, "bytes", snap.size, "err", err)
	}
	s.cache.Invalidate(bucket, key)
	return err
}

// storedLocked takes over what an upload made. Caller holds filesystem.mu and
// f.mu.
func (s *filesystem) storedLocked(f *file, snap snapshot, info store.Info, begun time.Time) {
	raw := f.info.Meta
	f.info = info
	f.info.Meta = snap.meta
	if f.metaChanges != snap.metaChanges {
		f.info.Meta = raw // changed meanwhile, still to be stored
		f.before = &metaState{snap.attributes, snap.meta}
	} else {
		f.dirtyMeta, f.before = false, nil
	}
	if snap.data {
		f.dirtyData = false
	}
	f.ownTime = !f.attributes.mtimeSet
	f.stored, f.metaKnown, f.exclusive, f.overwrite = true, true, false, false
	f.checked = begun
	f.changedLocked()
	if f.keepETag == snap.info.ETag {
		f.keepETag = info.ETag // pages that were of the old version are of this one
	}
	if !f.dirtyLocked() {
		delete(s.dirty, f)
	}
}

// lostLocked gives up a file whose object another writer changed first. The
// name goes to the winner; the data stay for the file's handles, see shelve.
func (s *filesystem) lostLocked(f *file, cause error) error {
	f.lost = newLostError(f, cause)
	s.detachLocked(f)
	f.parent.changedLocked(f.name, true)
	return f.lost
}

// shelve lets go of a file that another writer overtook once its last handle is
// closed. The spool keeps the content, of which unmount tells again.
func (s *filesystem) shelve(f *file) {
	f.mu.Lock()
	due := f.lost != nil && f.handles == 0
	f.mu.Unlock()
	// An upload that is still at the content shelves it in the end.
	if !due || !f.io.TryAcquire(ioReaders) {
		return
	}
	defer f.io.Release(ioReaders)
	s.mustJournal(f)
	s.mu.Lock()
	f.mu.Lock()
	sp, lost, name := f.spool, f.lost, f.name
	due = due && sp != nil && f.dirtyData && !f.unlinked
	if due {
		f.spool, f.recorded, f.dirtyData, f.dirtyMeta = nil, false, false, false
		delete(s.dirty, f)
	}
	f.mu.Unlock()
	s.mu.Unlock()
	if !due {
		return
	}
	err := errors.Join(keptError(name, sp, lost), sp.Keep())
	s.log.Error("content of a file that another writer overtook is kept in the spool", "name", name, "path", sp.Path(), "err", lost)
	s.mu.Lock()
	s.shelved = append(s.shelved, err)
	s.mu.Unlock()
}

// keptError names a file that was not stored and where its content is.
func keptError(name string, sp *spool.File, cause error) error {
	return fmt.Errorf("%s was not stored, its content is kept in %s: %w", name, sp.Path(), cause)
}

// lostError answers as kind, whatever the server's answer was.
type lostError struct{ kind, cause error }

func (e *lostError) Error() string { return e.cause.Error() }
func (e *lostError) Unwrap() error { return e.kind }

// newLostError is ESTALE, or EEXIST for a file made with O_EXCL. Caller holds
// f.mu.
func newLostError(f *file, cause error) error {
	e := &lostError{kind: syscall.ESTALE, cause: cause}
	if f.exclusive {
		e.kind = syscall.EEXIST
	}
	return fmt.Errorf("another writer was first: %w", e)
}

// put stores a snapshot. The end of parts stops it only where nothing can show
// in the bucket yet: an object that a cancelled request makes after all would
// outlive its unlink.
func (s *filesystem) put(ctx, parts context.Context, p snapshot) (store.Info, error) {
	return s.conditionally(ctx, p.bucket, p.key, p.cond, func(c store.Cond) (store.Info, error) {
		p.cond = c
		return s.putCond(ctx, parts, p)
	})
}

func (s *filesystem) putCond(ctx, parts context.Context, p snapshot) (store.Info, error) {
	switch {
	case !p.data:
		return s.store.Copy(ctx, store.CopyRequest{
			Bucket: p.bucket, Key: p.key, DstKey: p.key, SrcETag: p.info.ETag, Meta: p.meta, ContentType: p.info.ContentType,
		})
	case p.size <= min(singlePut, int64(s.cache.MaxStaging())), p.size < store.MinPartSize:
		var info store.Info
		err := s.withStaging(ctx, p.content, 0, p.size, func(seg verbs.Segment) (err error) {
			info, err = s.store.Put(ctx, store.PutRequest{
				Bucket: p.bucket, Key: p.key, Src: seg, Meta: p.meta, ContentType: p.info.ContentType, Cond: p.cond,
			})
			return err
		})
		return info, err
	}
	return s.putParts(ctx, parts, p)
}

// putParts stores a large file as a multipart upload.
func (s *filesystem) putParts(ctx, parts context.Context, p snapshot) (_ store.Info, err error) {
	note := spool.Upload{Bucket: p.bucket, Key: p.key, Begun: time.Now()}
	p.uploads.begins(note)
	u, err := s.store.Begin(ctx, p.bucket, p.key, p.meta, p.info.ContentType)
	if err != nil {
		if refused(err) {
			p.uploads.ended(note)
		}
		return store.Info{}, err
	}
	note.ID = u.ID()
	p.uploads.begins(note)
	defer func() {
		if err != nil {
			c, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
			defer cancel()
			if aerr := u.Abort(c); aerr != nil {
				s.log.Warn("multipart upload not aborted", "bucket", p.bucket, "key", p.key, "err", aerr)
				return
			}
		}
		p.uploads.ended(note)
	}()
	size := partSize(p.size, s.store.RDMAPutLimit())
	if most := int64(s.cache.MaxStaging()); size > most && (p.size+most-1)/most <= store.MaxParts && most >= store.MinPartSize {
		size = most
	}
	g, gctx := errgroup.WithContext(parts)
	g.SetLimit(fileParallel)
	for n, off := 1, int64(0); off < p.size && gctx.Err() == nil; n, off = n+1, off+size {
		g.Go(func() error {
			if err := s.parts.Acquire(gctx, 1); err != nil {
				return err
			}
			defer s.parts.Release(1)
			return s.withStaging(gctx, p.content, off, min(size, p.size-off), func(seg verbs.Segment) error {
				return u.Part(gctx, n, seg)
			})
		})
	}
	if err := errors.Join(g.Wait(), parts.Err()); err != nil {
		return store.Info{}, err
	}
	return u.Complete(ctx, p.cond)
}

// withStaging calls send with n bytes of the content at off in memory that RDMA
// can move.
func (s *filesystem) withStaging(ctx context.Context, content io.ReaderAt, off, n int64, send func(verbs.Segment) error) error {
	if n == 0 {
		return send(verbs.Segment{})
	}
	if n > int64(s.cache.MaxStaging()) {
		s.heapStaging.Lock()
		defer s.heapStaging.Unlock()
		seg := verbs.Segment{Buf: make([]byte, n)}
		if _, err := content.ReadAt(seg.Buf, off); err != nil {
			return fmt.Errorf("read spool: %w", err)
		}
		return send(seg)
	}
	r, err := s.cache.Staging(ctx, int(n))
	if err != nil {
		return err
	}
	defer r.Release()
	if _, err := content.ReadAt(r.Bytes(), off); err != nil {
		return fmt.Errorf("read spool: %w", err)
	}
	return quarantined(r, send(r.Segment()))
}

// quarantined passes err on. Memory a peer may still read is given up for ever.
func quarantined(r *cache.Region, err error) error {
	if errors.Is(err, verbs.ErrUnsafe) {
		r.Quarantine(err)
	}
	return err
}

// putBytes stores a small object.
func (s *filesystem) putBytes(ctx context.Context, bucket, key string, data []byte, meta map[string]string, contentType string, c store.Cond) (store.Info, error) {
	// Far below what RDMA is used for, and gone when the call returns.
	return s.conditionally(ctx, bucket, key, c, func(c store.Cond) (store.Info, error) {
		return s.store.Put(ctx, store.PutRequest{
			Bucket: bucket, Key: key, Src: verbs.Segment{Buf: data}, Meta: meta, ContentType: contentType, Cond: c,
		})
	})
}
