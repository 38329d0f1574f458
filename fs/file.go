package fs

import (
	"context"
	"errors"
	"strings"
	"sync"
	"syscall"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sync/semaphore"

	"s3rdmafs/spool"
	"s3rdmafs/store"
)

// maxLink is the longest target of a symbolic link, bytes. A larger object is
// never one, so listings need not be distrusted about it.
const maxLink = 4095

// ioReaders is the weight of an exclusive hold of file.io.
const ioReaders = 1 << 30

// file is an object: a regular file or a symbolic link.
type file struct {
	entry
	link bool

	// Guarded by filesystem.mu.
	unlinked bool      // dead by unlink or rename
	alone    time.Time // when no directory of the same name was seen

	up *semaphore.Weighted // see the package comment
	io *semaphore.Weighted

	journaling sync.Mutex // see the package comment

	mu        sync.Mutex
	info      store.Info // the version in the bucket, when stored
	stored    bool
	attempted bool      // an upload may have stored something in spite of its error
	metaKnown bool      // info.Meta is that of the object
	checked   time.Time // when info was last seen to be true
	version   uint64    // counts local changes of info
	changed   time.Time // the last of them; a look begun before is void

	attributes attributes
	ownTime    bool           // attributes.mtime is that of our writing of this version, finer than S3's
	spool      *spool.File    // the content, when not nil
	size       int64          // of the spool
	recorded   bool           // the spool's record is that of content to store
	uploads    []spool.Upload // not known to have ended

	dirtyData, dirtyMeta bool
	metaChanges          uint64
	refusedMeta          uint64     // metaChanges in the last upload that failed
	before               *metaState // while dirtyMeta, what the bucket has
	exclusive            bool       // made with O_EXCL
	overwrite            bool       // of whatever is there: this file was renamed over it
	replaces             string     // the version that was there then
	lost                 error      // another writer was first; the data can go nowhere

	handles, writers int
	keepETag         string             // the version whose pages the kernel may have, with what was written to it since
	uploading        context.CancelFunc // of the upload under way
	removed          chan struct{}      // not nil while unlink or a rename over f is under way, then closed

	target, targetETag string // of a link, as last read
}

var (
	_ gofs.NodeGetattrer     = (*file)(nil)
	_ gofs.NodeSetattrer     = (*file)(nil)
	_ gofs.NodeOpener        = (*file)(nil)
	_ gofs.NodeReadlinker    = (*file)(nil)
	_ gofs.NodeStatfser      = (*file)(nil)
	_ gofs.NodeOnForgetter   = (*file)(nil)
	_ gofs.NodeGetxattrer    = (*file)(nil)
	_ gofs.NodeSetxattrer    = (*file)(nil)
	_ gofs.NodeListxattrer   = (*file)(nil)
	_ gofs.NodeRemovexattrer = (*file)(nil)
)

func (s *filesystem) newFile(link bool) *file {
	return &file{
		link:       link,
		up:         semaphore.NewWeighted(1),
		io:         semaphore.NewWeighted(ioReaders),
		attributes: s.attributesOf(nil, s.begun, false),
		entry:      entry{fs: s},
	}
}

func (f *file) kind() uint32 {
	if f.link {
		return syscall.S_IFLNK
	}
	return syscall.S_IFREG
}

// OnForget implements gofs.NodeOnForgetter.
func (f *file) OnForget() { f.fs.forget(f) }

// Statfs implements gofs.NodeStatfser.
func (f *file) Statfs(_ context.Context, out *fuse.StatfsOut) syscall.Errno {
	f.fs.statfs(out)
	return 0
}

// sameVersion reports whether two looks saw the same content.
func sameVersion(a, b store.Info) bool { return a.ETag == b.ETag && a.Size == b.Size }

func (f *file) sizeLocked() int64 {
	if f.spool != nil {
		return f.size
	}
	return f.info.Size
}

func (f *file) dirtyLocked() bool { return f.dirtyData || f.dirtyMeta }

// inBucketLocked reports whether the bucket may have something under the name of
// f, be it what f was renamed over.
func (f *file) inBucketLocked() bool { return f.stored || f.attempted || f.overwrite }

// localLocked reports whether the truth about f is here and not in the bucket.
func (f *file) localLocked() bool {
	return f.dirtyLocked() || !f.stored || f.uploading != nil
}

// setInfoLocked takes over what a look begun at the given time saw. Without
// metadata it keeps what it had for the same state of the object.
func (f *file) setInfoLocked(info store.Info, metaKnown bool, begun time.Time) {
	same := f.stored && sameVersion(f.info, info) && f.info.ModTime.Unix() == info.ModTime.Unix()
	if !metaKnown && same && f.metaKnown {
		info.Meta, info.ContentType, metaKnown = f.info.Meta, f.info.ContentType, true
	}
	if f.stored && !sameVersion(f.info, info) {
		// For good, also if the ETag comes back: a smaller size in between has
		// zeroed the end of a page.
		f.keepETag = ""
		f.dropSpoolLocked()
	}
	known := f.stored && sameVersion(f.info, info) &&
		(f.info.ModTime.IsZero() || f.info.ModTime.Unix() == info.ModTime.Unix())
	own := f.ownTime && known
	mtime, ctime := f.attributes.mtime, f.attributes.ctime
	f.info, f.stored, f.metaKnown = info, true, metaKnown
	f.checked = begun
	f.attributes = f.fs.attributesOf(info.Meta, info.ModTime, false)
	if f.ownTime = own && !f.attributes.mtimeSet; f.ownTime {
		f.attributes.mtime = mtime
	}
	if known {
		f.attributes.ctime = ctime // tar takes another one for a change
	}
	if f.link {
		f.attributes.perm = 0o777
	}
}

// dropSpoolLocked gives up the spool, unless somebody is at it: who then makes
// it dirty, and drops it after the upload.
func (f *file) dropSpoolLocked() {
	if f.spool == nil || !f.io.TryAcquire(ioReaders) {
		return
	}
	if err := f.spool.Discard(); err != nil {
		f.fs.log.Warn("spool file not removed", "err", err)
	}
	f.spool, f.recorded = nil, false
	f.io.Release(ioReaders)
}

// removing ends an upload under way, whose result nobody needs any more, and
// holds others off until end is called. The kernel removes a name once at a
// time.
func (f *file) removing() (end func()) {
	removed := make(chan struct{})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removed = removed
	if f.uploading != nil {
		f.uploading()
	}
	return func() {
		f.mu.Lock()
		f.removed = nil
		f.mu.Unlock()
		close(removed)
	}
}

// changedLocked notes a change of info that was made here.
func (f *file) changedLocked() {
	f.version++
	f.changed = time.Now()
}

// acquire takes n of f.io, at once when it is free.
func (f *file) acquire(ctx context.Context, n int64) error {
	if f.io.TryAcquire(n) {
		return nil
	}
	c, done := f.fs.unbounded(ctx)
	defer done()
	return causeOf(c, f.io.Acquire(c, n))
}

// refresh makes sure that what is known of f was seen in the bucket since, or
// is the local truth. It answers ESTALE when the name does not lead to this
// node's version any more: the kernel then looks the name up again. then is
// called with f.mu held when the answer is 0 and still true.
func (f *file) refresh(ctx context.Context, since time.Time, then func()) syscall.Errno {
	s := f.fs
	f.mu.Lock()
	known, version := f.info, f.version
	if f.localLocked() || f.metaKnown && !f.checked.Before(since) {
		then()
		f.mu.Unlock()
		return 0
	}
	f.mu.Unlock()
	bucket, key, ok := s.place(f)
	if !ok {
		return syscall.ESTALE
	}
	begun := time.Now()
	c, done := s.request(ctx)
	info, err := s.store.Head(c, bucket, key)
	err = causeOf(c, err)
	done()

	s.mu.Lock()
	defer s.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.localLocked() || f.version != version:
		then()
		return 0
	case begun.Before(f.checked):
		// Another look has been later, and told the kernel.
		if !sameVersion(f.info, known) {
			return syscall.ESTALE
		}
		then()
		return 0
	case errors.Is(err, store.ErrNotFound):
		// Whoever asks by name learns what is there now.
		f.checked = time.Time{}
		return syscall.ESTALE
	case err != nil:
		return errnoOf(err)
	case isLink(info.Meta) != f.link:
		f.checked = time.Time{}
		return syscall.ESTALE
	case sameVersion(info, f.info):
		f.setInfoLocked(info, true, begun)
		then()
		return 0
	case f.handles > 0:
		f.checked = time.Time{}
		return syscall.ESTALE
	}
	f.setInfoLocked(info, true, begun)
	return syscall.ESTALE
}

// look is refresh for who does not mind what comes after.
func (f *file) look(ctx context.Context, since time.Time) syscall.Errno {
	return f.refresh(ctx, since, func() {})
}

// Getattr implements gofs.NodeGetattrer. A file with open handles is answered
// for as its handles see it.
func (f *file) Getattr(ctx context.Context, fh gofs.FileHandle, out *fuse.AttrOut) (errno syscall.Errno) {
	s := f.fs
	defer func() { s.n.count(opGetattr, errno) }()
	f.mu.Lock()
	open := f.handles > 0
	f.mu.Unlock()
	if !open {
		switch errno := f.look(ctx, time.Now().Add(-s.o.AttrTTL)); errno {
		case 0:
		case syscall.ESTALE:
			// A new version of this node is an answer; a new node is not.
			f.mu.Lock()
			seen := !f.checked.IsZero()
			f.mu.Unlock()
			if !seen {
				return errno
			}
		default:
			return errno
		}
	}
	s.attr(f, &out.Attr)
	out.SetTimeout(s.o.AttrTTL)
	return 0
}

// writable reports whether flags ask for writing.
func writable(flags uint32) bool { return flags&syscall.O_ACCMODE != syscall.O_RDONLY }

// Open implements gofs.NodeOpener.
func (f *file) Open(ctx context.Context, flags uint32) (_ gofs.FileHandle, _ uint32, errno syscall.Errno) {
	defer func() { f.fs.n.count(opOpen, errno) }()
	h, fuseFlags, errno := f.open(ctx, flags)
	if errno != 0 {
		return nil, 0, errno
	}
	return h, fuseFlags, 0
}

func (f *file) open(ctx context.Context, flags uint32) (*handle, uint32, syscall.Errno) {
	s := f.fs
	if writable(flags) && s.o.ReadOnly {
		return nil, 0, syscall.EROFS
	}
	if errno := f.pin(ctx, writable(flags)); errno != 0 {
		return nil, 0, errno
	}
	f.mu.Lock()
	if f.archivedLocked() {
		f.unpinLocked(writable(flags))
		f.mu.Unlock()
		return nil, 0, errnoOf(store.ErrArchived)
	}
	f.mu.Unlock()
	h := f.newHandle(writable(flags))
	f.mu.Lock()
	defer f.mu.Unlock()
	keep := uint32(0)
	// A file that was never stored has no ETag, nor pages but of what was
	// written here.
	if f.keepETag == f.info.ETag && (f.keepETag != "" || !f.stored) {
		keep = fuse.FOPEN_KEEP_CACHE
	}
	return h, keep, 0
}

// pin is pinLocked at the version the bucket has now, which the kernel knows.
func (f *file) pin(ctx context.Context, write bool) syscall.Errno {
	s := f.fs
	s.mu.Lock()
	dead, unlinked := f.dead, f.unlinked
	s.mu.Unlock()
	switch {
	case dead && !unlinked:
		return syscall.ESTALE // the name is another node's
	case dead:
		f.mu.Lock()
		f.pinLocked(write)
		f.mu.Unlock()
		return 0
	}
	return f.refresh(ctx, time.Now(), func() { f.pinLocked(write) })
}

// archivedLocked reports whether the object has to be restored before it can be
// read.
func (f *file) archivedLocked() bool {
	switch f.info.StorageClass {
	case "GLACIER", "DEEP_ARCHIVE":
		return f.spool == nil
	}
	return false
}

// Readlink implements gofs.NodeReadlinker.
func (f *file) Readlink(ctx context.Context) (_ []byte, errno syscall.Errno) {
	s := f.fs
	defer func() { s.n.count(opReadlink, errno) }()
	f.mu.Lock()
	info := f.info
	target, known := f.target, f.targetETag == f.info.ETag
	f.mu.Unlock()
	if known {
		return []byte(target), 0
	}
	if info.Size > maxLink {
		return nil, syscall.EINVAL
	}
	bucket, key, ok := s.place(f)
	if !ok {
		return nil, syscall.ESTALE
	}
	c, done := s.request(ctx)
	defer done()
	b, err := s.readAll(c, bucket, key, info)
	if err != nil {
		return nil, errnoOf(causeOf(c, err))
	}
	// s3fs-fuse ends targets it wrote long ago with a line feed.
	target = strings.TrimRight(string(b), "\n")
	f.mu.Lock()
	f.target, f.targetETag = target, info.ETag
	f.mu.Unlock()
	return []byte(target), 0
}

// readAll reads a small object.
func (s *filesystem) readAll(ctx context.Context, bucket, key string, info store.Info) ([]byte, error) {
	if info.Size == 0 {
		return nil, nil
	}
	obj := s.cache.Open(cacheKey(bucket, key, info))
	defer obj.Close()
	st := obj.NewStream()
	defer st.Close()
	b := make([]byte, info.Size)
	_, err := st.ReadAt(ctx, b, 0)
	return b, err
}

// Setattr implements gofs.NodeSetattrer.
func (f *file) Setattr(ctx context.Context, _ gofs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) (errno syscall.Errno) {
	s := f.fs
	defer func() { s.n.count(opSetattr, errno) }()
	if e := s.readOnlyErrno(); e != 0 {
		return e
	}
	if size, ok := in.GetSize(); ok {
		if size > store.MaxObjectSize {
			return syscall.EFBIG
		}
		if errno := s.truncatePath(ctx, f, int64(size)); errno != 0 {
			return errno
		}
	}
	errno = s.changeMeta(ctx, f, func(a *attributes, _ *map[string]string) (bool, syscall.Errno) {
		return a.set(in), 0
	})
	if errno != 0 {
		return errno
	}
	s.attr(f, &out.Attr)
	out.SetTimeout(s.o.AttrTTL)
	return 0
}

// changeMeta lets change edit a copy of the attributes and raw metadata of f,
// and stores the result: with the data when they are to be stored anyway, else
// at once.
func (s *filesystem) changeMeta(ctx context.Context, f *file, change func(*attributes, *map[string]string) (bool, syscall.Errno)) syscall.Errno {
	f.mu.Lock()
	known := f.metaKnown || !f.stored
	f.mu.Unlock()
	if !known {
		if errno := f.look(ctx, time.Now()); errno != 0 {
			return errno
		}
	}
	f.mu.Lock()
	a, raw := f.attributes, f.info.Meta
	changed, errno := change(&a, &raw)
	if errno != 0 || !changed {
		f.mu.Unlock()
		return errno
	}
	if metaSize(s.metaOf(raw, a, f.kind())) > maxMeta {
		f.mu.Unlock()
		return syscall.ENOSPC
	}
	a.ctime = time.Now()
	if !f.dirtyMeta {
		f.before = &metaState{f.attributes, f.info.Meta}
	}
	f.attributes, f.info.Meta = a, raw
	f.dirtyMeta = true
	f.metaChanges++
	later := f.writers > 0
	f.mu.Unlock()
	if !s.noteDirty(f) {
		return 0 // unlinked: seen by its handles, stored nowhere
	}
	if later {
		s.rejournal(f)
		return 0
	}
	return s.flush(ctx, f)
}

// metaState is what changeMeta changes.
type metaState struct {
	attributes attributes
	raw        map[string]string
}

// undoMeta takes back changes of metadata that could not be stored. Who made
// them has been told; kept, they would hide what the bucket has. With data to
// store they stay, for the next attempt.
func (s *filesystem) undoMeta(f *file) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.dirtyMeta || f.dirtyData || f.before == nil || f.uploading != nil || f.metaChanges != f.refusedMeta {
		return
	}
	f.attributes, f.info.Meta = f.before.attributes, f.before.raw
	f.dirtyMeta, f.before = false, nil
	// The server may have done it after all.
	f.metaKnown, f.checked = false, time.Time{}
	f.lost = nil
	delete(s.dirty, f)
}

// noteDirty puts f into the set of files to store, unless it was unlinked.
func (s *filesystem) noteDirty(f *file) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unlinked {
		f.dirtyData, f.dirtyMeta = false, false
		return false
	}
	if !f.dirtyLocked() {
		return true // stored meanwhile
	}
	s.dirty[f] = struct{}{}
	if _, _, ok := s.placeLocked(f); !ok && f.lost == nil {
		f.lost = newLostError(f, store.ErrChanged)
	}
	return true
}

// truncate changes the size of f, and stores it unless a writer has it open,
// whose close will. f is pinned.
func (s *filesystem) truncate(ctx context.Context, f *file, size int64) syscall.Errno {
	if err := f.acquire(ctx, ioReaders); err != nil {
		return errnoOf(err)
	}
	later := false
	err := s.edit(ctx, f, size, func(sp *spool.File) error {
		if err := sp.Truncate(size); err != nil {
			return err
		}
		f.mu.Lock()
		f.size = size
		later = f.writers > 0
		f.mu.Unlock()
		return nil
	})
	f.io.Release(ioReaders)
	if err != nil || later {
		return errnoOf(err)
	}
	return s.flush(ctx, f)
}

// truncatePath is truncate for who has no handle of f.
func (s *filesystem) truncatePath(ctx context.Context, f *file, size int64) syscall.Errno {
	f.mu.Lock()
	open := f.handles > 0
	if open {
		f.pinLocked(false)
	}
	f.mu.Unlock()
	if !open {
		if errno := f.pin(ctx, false); errno != 0 {
			return errno
		}
	}
	errno := s.truncate(ctx, f, size)
	s.mu.Lock()
	defer s.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lost != nil && f.handles == 1 {
		// The name leads to another version, and nobody has written to this one.
		f.dirtyData, f.dirtyMeta = false, false
		delete(s.dirty, f)
	}
	f.unpinLocked(false)
	return errno
}

// edit lets do change the content of f, after it has a spool with at least
// the first upto bytes of what it held, and a record that outlives this process.
// An error means that nothing changed. Caller holds f.io exclusively, and a pin.
func (s *filesystem) edit(ctx context.Context, f *file, upto int64, do func(*spool.File) error) error {
	if err := s.makeSpool(ctx, f, upto); err != nil {
		return err
	}
	f.mu.Lock()
	first := !f.dirtyData
	f.dirtyData = true
	recorded := f.recorded
	f.mu.Unlock()
	var err error
	if !recorded && s.noteDirty(f) {
		err = s.journal(f)
	}
	if err == nil {
		err = do(f.spool)
	}
	if err == nil {
		f.mu.Lock()
		f.wroteLocked()
		f.mu.Unlock()
	} else if first {
		s.unchanged(f)
	}
	return err
}

// unchanged takes back that the content of f is to be stored.
func (s *filesystem) unchanged(f *file) {
	s.mu.Lock()
	f.mu.Lock()
	f.dirtyData = false
	if !f.dirtyMeta {
		delete(s.dirty, f)
	}
	f.mu.Unlock()
	s.mu.Unlock()
	s.mustJournal(f)
}

// wroteLocked sets the times of a change of the content.
func (f *file) wroteLocked() {
	now := time.Now()
	f.attributes.mtime, f.attributes.ctime, f.attributes.mtimeSet = now, now, false
	f.attributes.atime = time.Time{}
}
