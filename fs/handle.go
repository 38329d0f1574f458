package fs

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"s3rdmafs/cache"
	"s3rdmafs/spool"
	"s3rdmafs/store"
)

// handle is an open file.
type handle struct {
	f     *file
	write bool
	seen  atomic.Bool // the kernel has used it, see use

	mu      sync.Mutex
	key     cache.Key // of stream
	object  *cache.Object
	stream  *cache.Stream
	readers sync.WaitGroup // reads that use stream
}

var (
	_ gofs.FileReader    = (*handle)(nil)
	_ gofs.FileWriter    = (*handle)(nil)
	_ gofs.FileFlusher   = (*handle)(nil)
	_ gofs.FileFsyncer   = (*handle)(nil)
	_ gofs.FileReleaser  = (*handle)(nil)
	_ gofs.FileAllocater = (*handle)(nil)
)

func cacheKey(bucket, key string, info store.Info) cache.Key {
	return cache.Key{Bucket: bucket, Key: key, ETag: info.ETag, Size: info.Size}
}

// newHandle is a handle of f, which the caller has pinned for it.
func (f *file) newHandle(write bool) *handle {
	h := &handle{f: f, write: write}
	s := f.fs
	s.mu.Lock()
	s.open[h] = struct{}{}
	s.mu.Unlock()
	s.n.handles.Add(1)
	return h
}

// pinLocked keeps f at its version, as an open handle does.
func (f *file) pinLocked(write bool) {
	f.handles++
	if write {
		f.writers++
	}
}

// unpinLocked undoes pinLocked.
func (f *file) unpinLocked(write bool) {
	f.handles--
	if write {
		f.writers--
	}
	if f.handles == 0 && !f.dirtyLocked() && f.uploading == nil {
		f.dropSpoolLocked()
	}
}

// use is called when the kernel uses h. It has then acted on the answer to
// open, so what pages it has of f are of f's version.
func (h *handle) use() {
	if h.seen.Swap(true) {
		return
	}
	h.f.mu.Lock()
	h.f.keepETag = h.f.info.ETag
	h.f.mu.Unlock()
}

// reading gives the stream of a version of the object; release ends its use.
func (h *handle) reading(k cache.Key) (_ *cache.Stream, release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.object == nil || h.key != k {
		h.closeStreamLocked()
		h.key = k
		h.object = h.f.fs.cache.Open(k)
		h.stream = h.object.NewStream()
	}
	h.readers.Add(1)
	return h.stream, h.readers.Done
}

// closeStreamLocked waits for the reads under way; they hold no lock.
func (h *handle) closeStreamLocked() {
	if h.object == nil {
		return
	}
	h.readers.Wait()
	h.stream.Close()
	h.object.Close()
	h.object, h.stream = nil, nil
}

// viewResult answers a READ straight from the cache's memory.
type viewResult struct{ v *cache.View }

func (r viewResult) Bytes([]byte) ([]byte, fuse.Status) { return r.v.Bytes(), fuse.OK }
func (r viewResult) Size() int                          { return len(r.v.Bytes()) }
func (r viewResult) Done()                              { r.v.Release() }

// Slices makes go-fuse write the bytes to the kernel without a copy.
func (r viewResult) Slices() ([][]byte, fuse.Status) { return [][]byte{r.v.Bytes()}, fuse.OK }

// Read implements gofs.FileReader.
func (h *handle) Read(ctx context.Context, dest []byte, off int64) (res fuse.ReadResult, errno syscall.Errno) {
	s := h.f.fs
	h.use()
	defer func() {
		s.n.count(opRead, errno)
		if errno == 0 {
			s.n.read.Add(uint64(res.Size()))
		}
	}()
	c, done := s.request(ctx)
	defer done()
	for {
		res, version, err := h.read(ctx, c, dest, off)
		if err == nil {
			return res, 0
		}
		if errors.Is(err, store.ErrChanged) || errors.Is(err, store.ErrNotFound) {
			h.f.mu.Lock()
			again := h.f.version != version
			h.f.mu.Unlock()
			if again {
				continue // our own upload or rename was faster than the read
			}
			return nil, syscall.ESTALE
		}
		return nil, errnoOf(causeOf(c, err))
	}
}

// read is one attempt; version is what f.version was.
func (h *handle) read(ctx, c context.Context, dest []byte, off int64) (_ fuse.ReadResult, version uint64, _ error) {
	f, s := h.f, h.f.fs
	if err := f.acquire(ctx, 1); err != nil {
		return nil, 0, err
	}
	f.mu.Lock()
	version = f.version
	sp, info := f.spool, f.info
	f.mu.Unlock()
	if sp != nil {
		defer f.io.Release(1)
		n, err := sp.ReadAt(dest, off)
		if err != nil && err != io.EOF {
			return nil, version, err
		}
		return fuse.ReadResultData(dest[:n]), version, nil
	}
	f.io.Release(1)

	n := min(int64(len(dest)), info.Size-off)
	if n <= 0 {
		return fuse.ReadResultData(nil), version, nil
	}
	bucket, key, ok := s.place(f)
	if !ok {
		bucket, key = info.Bucket, info.Key
	}
	st, release := h.reading(cacheKey(bucket, key, info))
	defer release()
	v, err := st.View(c, off, int(n))
	if err != nil {
		return nil, version, err
	}
	if len(v.Bytes()) == int(n) {
		return viewResult{v}, version, nil
	}
	// The kernel takes a short answer for the end of the file.
	got := copy(dest, v.Bytes())
	v.Release()
	if _, err := st.ReadAt(c, dest[got:n], off+int64(got)); err != nil {
		return nil, version, err
	}
	return fuse.ReadResultData(dest[:n]), version, nil
}

// makeSpool gives f a spool that holds at least the first upto bytes of its
// content. Caller holds f.io exclusively, and a pin or f.up.
func (s *filesystem) makeSpool(ctx context.Context, f *file, upto int64) error {
	for {
		f.mu.Lock()
		have, info, version := f.spool != nil, f.info, f.version
		f.mu.Unlock()
		if have {
			return nil
		}
		bucket, key, ok := s.place(f)
		if !ok {
			bucket, key = info.Bucket, info.Key
		}
		sp, err := s.spool.Create()
		if err != nil {
			return err
		}
		err = s.fetch(ctx, sp, bucket, key, info, min(upto, info.Size))
		f.mu.Lock()
		moved := f.version != version
		if err == nil && !sameVersion(f.info, info) {
			err = store.ErrChanged // what is stored later must not pass for made of f.info
		}
		if err == nil {
			f.spool, f.size = sp, info.Size
		}
		f.mu.Unlock()
		if err == nil {
			return nil
		}
		if derr := sp.Discard(); derr != nil {
			return errors.Join(err, derr)
		}
		if !moved || !errors.Is(err, store.ErrChanged) && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
}

// fetch copies the first n bytes of a version into a spool, of the size of the
// whole.
func (s *filesystem) fetch(ctx context.Context, sp *spool.File, bucket, key string, info store.Info, n int64) error {
	if err := sp.Truncate(info.Size); err != nil {
		return err
	}
	if n == 0 {
		return nil
	}
	if err := s.spool.Fits(n); err != nil {
		return err
	}
	obj := s.cache.Open(cacheKey(bucket, key, info))
	defer obj.Close()
	st := obj.NewStream()
	defer st.Close()
	for off := int64(0); off < n; {
		c, done := s.request(ctx)
		v, err := st.View(c, off, int(min(n-off, 4<<20)))
		err = causeOf(c, err)
		done()
		if err != nil {
			return err
		}
		m, err := sp.WriteAt(v.Bytes(), off)
		v.Release()
		if err != nil {
			return err
		}
		off += int64(m)
	}
	return nil
}

// Write implements gofs.FileWriter.
func (h *handle) Write(ctx context.Context, data []byte, off int64) (n uint32, errno syscall.Errno) {
	f, s := h.f, h.f.fs
	defer func() {
		s.n.count(opWrite, errno)
		s.n.written.Add(uint64(n))
	}()
	h.use()
	if off+int64(len(data)) > store.MaxObjectSize {
		return 0, syscall.EFBIG
	}
	if err := f.acquire(ctx, ioReaders); err != nil {
		return 0, errnoOf(err)
	}
	defer f.io.Release(ioReaders)
	m := 0
	err := s.edit(ctx, f, wholeFile, func(sp *spool.File) (err error) {
		m, err = sp.WriteAt(data, off)
		if m == 0 {
			return err
		}
		f.mu.Lock()
		f.size = max(f.size, off+int64(m))
		f.mu.Unlock()
		return nil // what did not fit is asked for again
	})
	return uint32(m), errnoOf(err)
}

// wholeFile is beyond the end of every file.
const wholeFile = int64(1) << 62

// Allocate implements gofs.FileAllocater: room cannot be reserved in S3, so
// only the size matters.
func (h *handle) Allocate(ctx context.Context, off, size uint64, mode uint32) (errno syscall.Errno) {
	f, s := h.f, h.f.fs
	defer func() { s.n.count(opFallocate, errno) }()
	h.use()
	switch {
	case mode&^unix.FALLOC_FL_KEEP_SIZE != 0:
		return syscall.EOPNOTSUPP
	case off+size > store.MaxObjectSize || off+size < off:
		return syscall.EFBIG
	case mode != 0:
		return 0
	}
	f.mu.Lock()
	grows := int64(off+size) > f.sizeLocked()
	f.mu.Unlock()
	if !grows {
		return 0
	}
	if err := f.acquire(ctx, ioReaders); err != nil {
		return errnoOf(err)
	}
	defer f.io.Release(ioReaders)
	return errnoOf(s.edit(ctx, f, wholeFile, func(sp *spool.File) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		to := max(int64(off+size), f.size)
		if err := sp.Truncate(to); err != nil {
			return err
		}
		f.size = to
		return nil
	}))
}

// Flush implements gofs.FileFlusher: close(2) tells whether the data are
// stored.
func (h *handle) Flush(ctx context.Context) (errno syscall.Errno) {
	s := h.f.fs
	defer func() { s.n.count(opFlush, errno) }()
	h.use()
	if !h.write || h.f.mayStayEmpty(ctx) {
		return 0
	}
	return s.flush(ctx, h.f)
}

// mayStayEmpty reports whether a FLUSH need not store f yet: nothing is in it,
// and the caller goes on with another descriptor. A shell that redirects into a
// file, dd, and touch open it, duplicate the descriptor and close the first; to store
// then would put an empty object over the old one for as long as they run.
func (f *file) mayStayEmpty(ctx context.Context) bool {
	f.mu.Lock()
	empty := f.dirtyData && f.size == 0 && f.handles > 0
	f.mu.Unlock()
	if !empty {
		return false
	}
	caller, ok := fuse.FromContext(ctx)
	return ok && holdsWritable(caller.Pid, f.StableAttr().Ino)
}

// Fsync implements gofs.FileFsyncer.
func (h *handle) Fsync(ctx context.Context, _ uint32) (errno syscall.Errno) {
	s := h.f.fs
	defer func() { s.n.count(opFsync, errno) }()
	h.use()
	return s.flush(ctx, h.f)
}

// Release implements gofs.FileReleaser. What a mapping wrote after the last
// close is stored in the background.
func (h *handle) Release(context.Context) syscall.Errno {
	f, s := h.f, h.f.fs
	s.n.count(opRelease, 0)
	h.use()
	s.n.handles.Add(-1)
	s.mu.Lock()
	delete(s.open, h)
	s.mu.Unlock()
	h.mu.Lock()
	h.closeStreamLocked()
	h.mu.Unlock()
	f.mu.Lock()
	f.unpinLocked(h.write)
	late := f.writers == 0 && f.dirtyLocked() && f.lost == nil
	f.mu.Unlock()
	if late {
		// A failure is logged, and tried again at unmount.
		s.background.Go(func() { s.upload(s.storing, f) })
	}
	s.shelve(f)
	return 0
}

// preserve brings the content of a file that is open into its spool before its
// object goes, so that the handles stay readable. Without room for it they
// answer ESTALE. Caller holds f.up.
func (s *filesystem) preserve(ctx context.Context, f *file) {
	const most = 1 << 30 // bytes
	f.mu.Lock()
	need := f.handles > 0 && f.spool == nil && f.info.Size > 0 && f.info.Size <= most
	f.mu.Unlock()
	if !need || f.acquire(ctx, ioReaders) != nil {
		return
	}
	defer f.io.Release(ioReaders)
	begun := time.Now()
	if err := s.makeSpool(ctx, f, wholeFile); err != nil {
		s.log.Warn("content of an open file is lost with its name", "err", err, "after", time.Since(begun))
	}
}
