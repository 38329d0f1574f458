package fs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"syscall"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"s3rdmafs/store"
)

// renameParallel is how many objects of a directory are copied at once.
const renameParallel = 8

// known is the node the kernel means by a name it has just resolved, without
// another look at the bucket when there is one.
func (d *dir) known(ctx context.Context, name string) (node, syscall.Errno) {
	d.fs.mu.Lock()
	n := d.children[name]
	d.fs.mu.Unlock()
	if n != nil {
		return n, 0
	}
	return d.find(ctx, name)
}

// Rename implements gofs.NodeRenamer: copy on the server, verify, delete.
func (d *dir) Rename(ctx context.Context, name string, newParent gofs.InodeEmbedder, newName string, flags uint32) (errno syscall.Errno) {
	s := d.fs
	defer func() { s.n.count(opRename, errno) }()
	if e := s.readOnlyErrno(); e != 0 {
		return e
	}
	if flags&^unix.RENAME_NOREPLACE != 0 {
		return syscall.EINVAL
	}
	to, ok := newParent.(*dir)
	if !ok {
		return syscall.EXDEV
	}
	n, errno := d.known(ctx, name)
	if errno != 0 {
		return errno
	}
	bucket, _, ok := s.place(d)
	toBucket, toPrefix, toOK := s.place(to)
	if !ok || !toOK {
		return syscall.ENOENT
	}
	if s.allBuckets(d) || s.allBuckets(to) || bucket != toBucket {
		return syscall.EXDEV
	}
	_, isDir := n.(*dir)
	if e := keyErrno(toPrefix, newName, isDir); e != 0 {
		return e
	}
	var target node
	switch target, errno = to.find(ctx, newName); errno {
	case 0:
		if flags&unix.RENAME_NOREPLACE != 0 {
			return syscall.EEXIST
		}
	case syscall.ENOENT:
		target = nil
	default:
		return errno
	}
	if target == n {
		return 0
	}
	noReplace := flags&unix.RENAME_NOREPLACE != 0
	switch n := n.(type) {
	case *dir:
		td, ok := target.(*dir)
		if target != nil && !ok {
			return syscall.ENOTDIR
		}
		return s.renameDir(ctx, d, name, n, to, newName, td)
	case *file:
		tf, ok := target.(*file)
		if target != nil && !ok {
			return syscall.EISDIR
		}
		return s.renameFile(ctx, d, name, n, to, newName, tf, noReplace)
	}
	return syscall.EINVAL
}

// renameFile moves the object of f over that of target, which may be nil.
func (s *filesystem) renameFile(ctx context.Context, d *dir, name string, f *file, to *dir, newName string, target *file, noReplace bool) syscall.Errno {
	c, done := s.request(ctx)
	defer done()
	fail := func(err error) syscall.Errno { return errnoOf(causeOf(c, err)) }
	if err := f.up.Acquire(c, 1); err != nil {
		return fail(err)
	}
	defer f.up.Release(1)
	if target != nil {
		target.cancelUpload()
		if err := target.up.Acquire(c, 1); err != nil {
			return fail(err)
		}
		defer target.up.Release(1)
		s.preserve(ctx, target)
	}
	bucket, oldKey, ok := s.place(f)
	_, prefix, toOK := s.place(to)
	if !ok || !toOK {
		return syscall.ENOENT
	}
	newKey := prefix + newName

	f.mu.Lock()
	stored, dirty := f.stored || f.attempted, f.dirtyLocked()
	f.mu.Unlock()
	if stored && dirty {
		// What the bucket has of it has to move in any case; so all of it does.
		if err := s.uploadHeld(c, f); err != nil {
			return fail(err)
		}
	}
	if stored {
		if err := d.keep(c, name); err != nil {
			return fail(err)
		}
		f.mu.Lock()
		info := f.info
		f.mu.Unlock()
		var cond store.Cond
		if noReplace {
			cond.IfAbsent = true
		}
		moved, err := s.moveObject(c, bucket, oldKey, newKey, info, f.ownMTime(), cond)
		if err != nil {
			return fail(err)
		}
		f.mu.Lock()
		if f.keepETag == f.info.ETag {
			f.keepETag = moved.ETag // the same bytes
		}
		f.info = moved
		f.attributes.mtimeSet, f.ownTime, f.metaKnown = true, false, true
		f.version++
		f.mu.Unlock()
		s.cache.Invalidate(bucket, oldKey)
		s.cache.Invalidate(bucket, newKey)
	}

	if target != nil {
		target.mu.Lock()
		there := target.stored || target.attempted
		target.mu.Unlock()
		s.unlinked(to, newName, target)
		if !stored && there {
			f.mu.Lock()
			f.overwrite = true // when it is stored, in place of the target
			f.mu.Unlock()
		}
	}
	s.mu.Lock()
	s.moveLocked(d, name, f, to, newName)
	s.mu.Unlock()
	return 0
}

// moveLocked moves a node in the tree.
func (s *filesystem) moveLocked(d *dir, name string, n node, to *dir, newName string) {
	if d.children[name] == n {
		delete(d.children, name)
	}
	s.detachNameLocked(to, newName)
	e := n.base()
	e.parent, e.name = to, newName
	to.children[newName] = n
	d.changedLocked(name, true)
	to.changedLocked(newName, false)
}

// ownMTime is the time of f when it is known better than S3 does, else zero.
func (f *file) ownMTime() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ownTime {
		return f.attributes.mtime
	}
	return time.Time{}
}

// copyObject copies the version etag of an object on the server. The copy keeps
// the time of the source, which S3 itself would not: mtime, or else what the
// source has.
func (s *filesystem) copyObject(ctx context.Context, bucket, from, to, etag string, mtime time.Time, cond store.Cond) error {
	info, err := s.store.Head(ctx, bucket, from)
	if err != nil {
		return err
	}
	if info.ETag != etag {
		return store.ErrChanged
	}
	if mtime.IsZero() {
		mtime = info.ModTime
	}
	meta := maps.Clone(info.Meta)
	if _, ok := parseMTime(meta[metaMTime]); !ok {
		if meta == nil {
			meta = map[string]string{}
		}
		meta[metaMTime] = formatMTime(mtime)
		if metaSize(meta) > maxMeta {
			delete(meta, metaMTime)
		}
	}
	if strings.HasSuffix(from, "/") && info.Size == 0 {
		// Not every server copies a marker.
		_, err := s.putBytes(ctx, bucket, to, nil, meta, info.ContentType, cond)
		return err
	}
	_, err = s.conditionally(ctx, bucket, to, cond, func(c store.Cond) (store.Info, error) {
		return s.store.Copy(ctx, store.CopyRequest{
			Bucket: bucket, Key: from, DstKey: to, SrcETag: etag, Meta: meta, ContentType: info.ContentType, Cond: c,
		})
	})
	return err
}

// moveObject copies an object on the server, makes sure that the copy is whole,
// and deletes the source.
func (s *filesystem) moveObject(ctx context.Context, bucket, from, to string, info store.Info, mtime time.Time, cond store.Cond) (store.Info, error) {
	if err := s.copyObject(ctx, bucket, from, to, info.ETag, mtime, cond); err != nil {
		return store.Info{}, err
	}
	moved, err := s.store.Head(ctx, bucket, to)
	if err != nil {
		return store.Info{}, err
	}
	if err := verifyCopy(info, moved); err != nil {
		return store.Info{}, err
	}
	if err := s.store.Delete(ctx, bucket, from); err != nil && !errors.Is(err, store.ErrNotFound) {
		return store.Info{}, err
	}
	return moved, nil
}

// errCopyDiffers: a server-side copy is not what was copied.
var errCopyDiffers = errors.New("copy differs from its source")

// verifyCopy compares what the server tells. The ETag of a copy is that of the
// source unless one of them was made of parts or is encrypted.
func verifyCopy(from, to store.Info) error {
	if from.Size != to.Size {
		return fmt.Errorf("%w: %d bytes, source has %d", errCopyDiffers, to.Size, from.Size)
	}
	return nil
}

// renameDir moves everything below one prefix to another. Nothing is deleted
// before every copy was seen to be there.
func (s *filesystem) renameDir(ctx context.Context, d *dir, name string, n, to *dir, newName string, target *dir) syscall.Errno {
	c, done := s.unbounded(ctx)
	defer done()
	fail := func(err error) syscall.Errno { return errnoOf(causeOf(c, err)) }
	if err := s.dirRename.Acquire(c, 1); err != nil {
		return fail(err)
	}
	defer s.dirRename.Release(1)

	bucket, from, ok := s.place(n)
	_, toPrefix, toOK := s.place(to)
	if !ok || !toOK {
		return syscall.ENOENT
	}
	into := toPrefix + newName + "/"
	if strings.HasPrefix(into, from) {
		return syscall.EINVAL
	}
	if target != nil {
		if errno := s.emptyErrno(c, target, bucket, into); errno != 0 {
			return errno
		}
	}

	// No upload runs and none begins while the keys move. What is only here
	// moves with the tree.
	s.mu.Lock()
	files := s.filesLocked(n)
	s.mu.Unlock()
	for _, f := range files {
		if err := f.up.Acquire(c, 1); err != nil {
			return fail(err)
		}
		defer f.up.Release(1)
		f.mu.Lock()
		flush := f.dirtyLocked() && (f.stored || f.attempted)
		f.mu.Unlock()
		if flush {
			if err := s.uploadHeld(c, f); err != nil {
				return fail(err)
			}
		}
	}

	infos, err := s.listAll(c, bucket, from)
	if err != nil {
		return fail(err)
	}
	for _, info := range infos {
		if len(info.Key)-len(from)+len(into) > store.MaxKeyLen {
			return syscall.ENAMETOOLONG
		}
	}
	if err := d.keep(c, name); err != nil {
		return fail(err)
	}
	if err := s.copyAll(c, bucket, from, into, infos); err != nil {
		return fail(err)
	}
	keys := make([]string, len(infos))
	for i, info := range infos {
		keys[i] = info.Key
	}
	if left, err := s.store.DeleteMany(c, bucket, keys); err != nil {
		return fail(err)
	} else if len(left) > 0 {
		for _, err := range left {
			return fail(err)
		}
	}

	moved, err := s.listAll(c, bucket, into)
	byKey := map[string]store.Info{}
	if err == nil {
		for _, info := range moved {
			byKey[info.Key] = info
		}
	}
	for _, f := range files {
		bucket, key, _ := s.place(f)
		s.cache.Invalidate(bucket, key)
		info, ok := byKey[into+strings.TrimPrefix(key, from)]
		f.mu.Lock()
		if f.stored {
			meta, contentType := f.info.Meta, f.info.ContentType
			if ok {
				if f.keepETag == f.info.ETag {
					f.keepETag = info.ETag
				}
				f.info = info
				f.info.Meta, f.info.ContentType = meta, contentType
				f.metaKnown = false // the copy carries its time in addition
			}
			f.version++
		}
		f.mu.Unlock()
	}
	s.mu.Lock()
	if target != nil {
		s.detachLocked(target)
	}
	s.moveLocked(d, name, n, to, newName)
	n.marked = n.marked || len(infos) == 0
	s.mu.Unlock()
	return 0
}

// listAll is everything below prefix, fresh.
func (s *filesystem) listAll(ctx context.Context, bucket, prefix string) ([]store.Info, error) {
	var all []store.Info
	req := store.ListRequest{Bucket: bucket, Prefix: prefix, Recursive: true}
	for {
		p, err := s.store.List(ctx, req)
		if err != nil {
			return nil, err
		}
		all = append(all, p.Infos...)
		if p.Next == "" {
			return all, nil
		}
		req.Token = p.Next
	}
}

// copyAll copies every object of infos from one prefix to another and sees them
// there. When it fails, the copies go again.
func (s *filesystem) copyAll(ctx context.Context, bucket, from, into string, infos []store.Info) (err error) {
	var mu sync.Mutex
	var made []string
	defer func() {
		if err == nil || len(made) == 0 {
			return
		}
		c, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
		defer cancel()
		if _, derr := s.store.DeleteMany(c, bucket, made); derr != nil {
			s.log.Warn("copies of a failed rename stay", "bucket", bucket, "prefix", into, "err", derr)
		}
	}()
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(renameParallel)
	for _, info := range infos {
		g.Go(func() error {
			key := into + strings.TrimPrefix(info.Key, from)
			err := s.copyObject(gctx, bucket, info.Key, key, info.ETag, time.Time{}, store.Cond{})
			if err == nil {
				mu.Lock()
				made = append(made, key)
				mu.Unlock()
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	there, err := s.listAll(ctx, bucket, into)
	if err != nil {
		return err
	}
	size := make(map[string]int64, len(there))
	for _, info := range there {
		size[info.Key] = info.Size
	}
	for _, info := range infos {
		n, ok := size[into+strings.TrimPrefix(info.Key, from)]
		if !ok || n != info.Size {
			return fmt.Errorf("%w: %q", errCopyDiffers, info.Key)
		}
	}
	return nil
}
