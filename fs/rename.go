package fs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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
	for range 10 {
		if errno != 0 {
			return errno
		}
		if errno = s.rename(ctx, d, name, n, to, newName, flags&unix.RENAME_NOREPLACE != 0); errno != syscall.ESTALE {
			return errno
		}
		// Another client stored a newer version, which has the name now. The
		// kernel would not ask again.
		f, ok := n.(*file)
		if !ok || !f.forgetLook() {
			return errno
		}
		n, errno = d.find(ctx, name)
	}
	return errno
}

// forgetLook makes the next look at f ask the bucket. It returns false when the
// truth about f is here.
func (f *file) forgetLook() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.checked = time.Time{}
	return !f.localLocked() && f.lost == nil
}

// rename moves n from d to a name in to.
func (s *filesystem) rename(ctx context.Context, d *dir, name string, n node, to *dir, newName string, noReplace bool) (errno syscall.Errno) {
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
		if noReplace {
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

// renameFile moves the object of f over that of target, which may be nil. The
// tree changes before the source is deleted, so that nobody meets f where its
// object is not.
func (s *filesystem) renameFile(ctx context.Context, d *dir, name string, f *file, to *dir, newName string, target *file, noReplace bool) syscall.Errno {
	c, done := s.unbounded(ctx) // the copy of a large object takes its time
	defer done()
	fail := func(err error) syscall.Errno { return errnoOf(causeOf(c, err)) }
	nodes := []node{f}
	if target != nil {
		nodes = append(nodes, target)
	}
	change, errno := s.enter(ctx, to, newName, nodes...)
	if errno != 0 {
		return errno
	}
	defer change.end()
	if err := f.up.Acquire(c, 1); err != nil {
		return fail(err)
	}
	defer f.up.Release(1)
	if target != nil {
		defer target.removing()()
		if err := target.up.Acquire(c, 1); err != nil {
			return fail(err)
		}
		defer target.up.Release(1)
		s.preserve(ctx, target)
	}
	bucket, oldKey, ok := s.place(f)
	_, prefix, toOK := s.place(to)
	if !ok {
		return syscall.ESTALE
	}
	if !toOK {
		return syscall.ENOENT
	}
	newKey := prefix + newName

	f.mu.Lock()
	stored, dirty := f.inBucketLocked(), f.dirtyLocked()
	f.mu.Unlock()
	if stored && dirty {
		// What the bucket has of it has to move in any case; so all of it does.
		if err := s.uploadHeld(c, f); err != nil {
			return fail(err)
		}
	}
	var source, copied store.Info
	if stored {
		if err := d.keep(c, name); err != nil {
			return fail(err)
		}
		f.mu.Lock()
		source = f.info
		f.mu.Unlock()
		var err error
		copied, err = s.copyVerified(c, bucket, oldKey, newKey, source, f.ownMTime(), store.Cond{IfAbsent: noReplace})
		if err != nil {
			return fail(err)
		}
	}

	overwrite, replaced := false, ""
	if target != nil {
		target.mu.Lock()
		there := target.inBucketLocked()
		replaced = cmp.Or(target.info.ETag, target.replaces)
		target.mu.Unlock()
		s.unlinked(to, newName, target)
		overwrite = !stored && there
	}
	s.mu.Lock()
	f.mu.Lock()
	if stored {
		f.movedLocked(copied)
		f.attributes.mtimeSet, f.ownTime, f.metaKnown = true, false, true
	}
	if overwrite {
		f.overwrite, f.replaces = true, replaced // when it is stored, in place of the target
	}
	f.mu.Unlock()
	s.moveLocked(d, name, f, to, newName)
	s.mu.Unlock()
	s.rejournal(f)
	if !stored {
		return 0
	}
	s.cache.Invalidate(bucket, newKey)
	err := s.deleteVersion(c, bucket, oldKey, source)
	s.cache.Invalidate(bucket, oldKey)
	s.mu.Lock()
	s.forgetNameLocked(d, name)
	s.mu.Unlock()
	return fail(err)
}

// movedLocked takes over what f's object is at its new place.
func (f *file) movedLocked(info store.Info) {
	if f.keepETag == f.info.ETag {
		f.keepETag = info.ETag // the same bytes
	}
	f.info = info
	f.changedLocked()
}

// forgetNameLocked takes away what a look beside the end of a rename found of
// the old name.
func (s *filesystem) forgetNameLocked(d *dir, name string) {
	switch n := d.children[name].(type) {
	case *file:
		n.mu.Lock()
		local := n.localLocked() || n.handles > 0
		n.mu.Unlock()
		if local {
			return
		}
		s.detachLocked(n)
	case *dir:
		if s.localLocked(n) {
			return
		}
		s.detachLocked(n)
	}
	d.changedLocked(name, true)
}

// moveLocked moves a node in the tree.
func (s *filesystem) moveLocked(d *dir, name string, n node, to *dir, newName string) {
	if d.children[name] == n {
		delete(d.children, name)
	}
	s.detachNameLocked(to, newName)
	e := n.base()
	e.parent, e.name, e.dead = to, newName, false
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

// copyVerified copies a version of an object on the server and makes sure that
// the copy is whole.
func (s *filesystem) copyVerified(ctx context.Context, bucket, from, to string, info store.Info, mtime time.Time, cond store.Cond) (store.Info, error) {
	if err := s.copyObject(ctx, bucket, from, to, info.ETag, mtime, cond); err != nil {
		return store.Info{}, err
	}
	copied, err := s.store.Head(ctx, bucket, to)
	if err != nil {
		return store.Info{}, err
	}
	return copied, verifyCopy(info, copied)
}

// deleteVersion deletes an object unless another client has stored a version
// that is not the one copied: that came after the rename.
func (s *filesystem) deleteVersion(ctx context.Context, bucket, key string, info store.Info) error {
	now, err := s.store.Head(ctx, bucket, key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case err != nil:
		return err
	case !sameVersion(now, info):
		s.log.Warn("another client stored a file while it was renamed; that version stays under the old name", "bucket", bucket, "key", key)
		return nil
	}
	if err := s.store.Delete(ctx, bucket, key); err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return nil
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
// before every copy was seen to be there, and the tree changes in between.
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
	// Neither is anything below the two stored or removed from here on. What is
	// only here moves with the tree.
	end, err := s.beginTree(c, bucket, from, into)
	if err != nil {
		return fail(err)
	}
	defer end()
	if target != nil {
		if errno := s.emptyErrno(c, target, bucket, into); errno != 0 {
			return errno
		}
	}
	s.mu.Lock()
	files := s.filesLocked(n)
	s.mu.Unlock()
	for _, f := range files {
		if err := s.storeForRename(c, f); err != nil {
			return fail(err)
		}
	}
	if err := d.keep(c, name); err != nil {
		return fail(err)
	}
	t := treeCopy{s: s, bucket: bucket, from: from, into: into, keepMarker: target != nil}
	if err := t.run(c); err != nil {
		return fail(err)
	}

	s.mu.Lock()
	for _, f := range s.filesLocked(n) {
		_, key, _ := s.placeLocked(f)
		f.mu.Lock()
		if info, ok := t.there[t.copyOf(key)]; ok && f.stored {
			info.Meta, info.ContentType = f.info.Meta, f.info.ContentType
			f.movedLocked(info)
			f.metaKnown = false // the copy carries its time in addition
		}
		f.changedLocked()
		f.mu.Unlock()
	}
	if target != nil {
		s.detachLocked(target)
	}
	s.moveLocked(d, name, n, to, newName)
	n.marked = n.marked || len(t.copied) == 0
	movedTreeLocked(n)
	files = s.filesLocked(n)
	s.mu.Unlock()
	for _, f := range files {
		s.rejournal(f)
	}

	err = t.deleteSource(c)
	s.mu.Lock()
	s.forgetNameLocked(d, name)
	s.mu.Unlock()
	return fail(err)
}

// movedTreeLocked voids what looks begun before know of the names below d.
func movedTreeLocked(d *dir) {
	d.seq++
	clear(d.recent)
	clear(d.absent)
	for _, n := range d.children {
		if sub, ok := n.(*dir); ok {
			movedTreeLocked(sub)
		}
	}
}

// storeForRename stores a file that the bucket has in another state, so that
// its object can be moved by the server.
func (s *filesystem) storeForRename(ctx context.Context, f *file) error {
	if err := f.up.Acquire(ctx, 1); err != nil {
		return err
	}
	defer f.up.Release(1)
	f.mu.Lock()
	flush := f.dirtyLocked() && f.inBucketLocked()
	f.mu.Unlock()
	if !flush {
		return nil
	}
	return s.uploadHeld(ctx, f)
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

// treeCopyRounds is how often the source is gone through for what other clients
// changed during the copy. What they store later stays where they stored it.
const treeCopyRounds = 4

// treeCopy copies every object below one prefix to another.
type treeCopy struct {
	s                  *filesystem
	bucket, from, into string
	keepMarker         bool // the destination was there before, as an empty directory

	mu     sync.Mutex
	copied map[string]store.Info // by key, the version of the source that was copied
	there  map[string]store.Info // by key, what is at the destination
	source []store.Info          // what was at the source in the end
}

// run copies what is below the source, and sees it at the destination. When it
// fails, the copies go again.
func (t *treeCopy) run(ctx context.Context) (err error) {
	t.copied = map[string]store.Info{}
	defer func() {
		if err == nil {
			return
		}
		c, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
		defer cancel()
		if derr := t.deleteCopies(c, slices.Collect(maps.Keys(t.copied))); derr != nil {
			t.s.log.Warn("copies of a failed rename stay", "bucket", t.bucket, "prefix", t.into, "err", derr)
		}
	}()
	for round := 0; ; round++ {
		if t.source, err = t.s.listAll(ctx, t.bucket, t.from); err != nil {
			return err
		}
		todo, gone := t.compare(t.source)
		if len(todo) == 0 && len(gone) == 0 || round == treeCopyRounds {
			return nil
		}
		for _, info := range todo {
			if len(t.copyOf(info.Key)) > store.MaxKeyLen {
				return syscall.ENAMETOOLONG
			}
		}
		if err := t.deleteCopies(ctx, gone); err != nil {
			return err
		}
		if err := t.copy(ctx, todo); err != nil {
			return err
		}
		if err := t.verify(ctx); err != nil {
			return err
		}
	}
}

// copyOf is the key at the destination for one of the source.
func (t *treeCopy) copyOf(key string) string { return t.into + strings.TrimPrefix(key, t.from) }

// compare tells what of the source is still to be copied, and which copies have
// lost their source.
func (t *treeCopy) compare(infos []store.Info) (todo []store.Info, gone []string) {
	now := make(map[string]bool, len(infos))
	for _, info := range infos {
		now[info.Key] = true
		if was, ok := t.copied[info.Key]; !ok || !sameVersion(was, info) {
			todo = append(todo, info)
		}
	}
	for key := range t.copied {
		if !now[key] {
			gone = append(gone, key)
		}
	}
	return todo, gone
}

// copy copies objects of the source. Those that another client changes at the
// same time are left to the next round.
func (t *treeCopy) copy(ctx context.Context, infos []store.Info) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(renameParallel)
	for _, info := range infos {
		g.Go(func() error {
			err := t.s.copyObject(gctx, t.bucket, info.Key, t.copyOf(info.Key), info.ETag, time.Time{}, store.Cond{})
			switch {
			case err == nil:
				t.mu.Lock()
				t.copied[info.Key] = info
				t.mu.Unlock()
			case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrChanged), errors.Is(err, store.ErrPrecondition):
				return nil
			}
			return err
		})
	}
	return g.Wait()
}

// verify sees every copy at the destination.
func (t *treeCopy) verify(ctx context.Context) error {
	infos, err := t.s.listAll(ctx, t.bucket, t.into)
	if err != nil {
		return err
	}
	t.there = make(map[string]store.Info, len(infos))
	for _, info := range infos {
		t.there[info.Key] = info
	}
	for key, info := range t.copied {
		there, ok := t.there[t.copyOf(key)]
		if !ok {
			return fmt.Errorf("%w: %q is not there", errCopyDiffers, t.copyOf(key))
		}
		if err := verifyCopy(info, there); err != nil {
			return fmt.Errorf("%q: %w", t.copyOf(key), err)
		}
	}
	return nil
}

// deleteCopies deletes the copies of keys of the source.
func (t *treeCopy) deleteCopies(ctx context.Context, keys []string) error {
	var copies []string
	for _, key := range keys {
		delete(t.copied, key)
		if key == t.from && t.keepMarker {
			continue
		}
		copies = append(copies, t.copyOf(key))
	}
	return t.s.deleteAll(ctx, t.bucket, copies)
}

// deleteSource deletes what was copied, but for versions that another client
// stored since.
func (t *treeCopy) deleteSource(ctx context.Context) error {
	var keys []string
	for _, info := range t.source {
		if was, ok := t.copied[info.Key]; ok && sameVersion(was, info) {
			keys = append(keys, info.Key)
		}
	}
	if n := len(t.source) - len(keys); n > 0 {
		t.s.log.Warn("another client stored files while their directory was renamed; they stay under the old name",
			"bucket", t.bucket, "prefix", t.from, "files", n)
	}
	return t.s.deleteAll(ctx, t.bucket, keys)
}

// deleteAll deletes keys; its error is that of one that stays.
func (s *filesystem) deleteAll(ctx context.Context, bucket string, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	left, err := s.store.DeleteMany(ctx, bucket, keys)
	if err != nil {
		return err
	}
	for _, err := range left {
		return err
	}
	return nil
}
