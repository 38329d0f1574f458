package fs

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"s3rdmafs/store"
)

// recoverWait is how long a mount waits for what killed ones left.
const recoverWait = 10 * time.Second

// drainParallel is how many files are stored at once at unmount.
const drainParallel = 4

// Mounted is a mounted file system, as Mount returns it. Its methods may be called concurrently.
type Mounted struct {
	fs     *filesystem
	server *fuse.Server
	dir    string
	conn   uint32 // number of the kernel's connection, 0 when unknown
	source string

	gone     chan struct{} // closed when the kernel's connection has ended
	finished chan struct{} // closed when what was dirty then is dealt with
	result   error         // of finished

	unmounting sync.Mutex
	drain      context.Context // bounds the drain after the connection has ended
}

// Mount shows the bucket of o at the directory mountpoint and returns once the
// file system answers. ctx bounds the mounting only. Errors are sentences for
// the user; those of the bucket wrap the kinds of package store, those of the
// directory the errors of this package.
func Mount(ctx context.Context, mountpoint string, o Options) (*Mounted, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	abs, err := resolveMountpoint(mountpoint)
	if err != nil {
		return nil, err
	}
	if err := clearDeadMount(abs, o.Logger); err != nil {
		return nil, err
	}
	if err := CheckMountpoint(abs); err != nil {
		return nil, err
	}
	if err := checkSource(ctx, o); err != nil {
		return nil, err
	}

	s := newFilesystem(o)
	if !o.ReadOnly {
		if err := s.openSpool(); err != nil {
			return nil, err
		}
		s.recoverFirst(ctx)
	}
	m := &Mounted{
		fs: s, dir: abs, source: "s3://" + o.Bucket + "/" + o.Prefix,
		gone: make(chan struct{}), finished: make(chan struct{}),
	}
	s.mount = m

	server, err := gofs.Mount(abs, s.root, m.kernelOptions())
	if err != nil {
		s.end()
		s.cancelStoring()
		s.background.Wait()
		return nil, errors.Join(fmt.Errorf("mount at %s: %w", abs, err), s.closeSpool())
	}
	m.server = server
	if at, err := mountsAt(abs); err == nil && len(at) > 0 && at[len(at)-1].ours() {
		m.conn = at[len(at)-1].device
	}
	tune(abs, o.Logger)
	go func() {
		server.Wait()
		s.end()
		close(m.gone)
		m.finish()
		close(m.finished)
	}()
	return m, nil
}

func newFilesystem(o Options) *filesystem {
	s := &filesystem{
		o: o, log: o.Logger, store: o.Store, cache: o.Cache, begun: time.Now(),
		dirRename: semaphore.NewWeighted(1), parts: semaphore.NewWeighted(int64(o.UploadParallel)),
		inos: map[uint64]node{}, open: map[*handle]struct{}{}, dirty: map[*file]struct{}{}, skipped: map[string]struct{}{},
	}
	s.life, s.end = context.WithCancel(context.Background())
	s.storing, s.cancelStoring = context.WithCancel(context.Background())
	s.root = s.newDir()
	s.root.fs, s.root.ino = s, fuse.FUSE_ROOT_ID
	s.inos[fuse.FUSE_ROOT_ID] = s.root
	return s
}

// recoverFirst deals with what killed mounts left, before programs come; what
// takes longer goes on beside them.
func (s *filesystem) recoverFirst(ctx context.Context) {
	done := make(chan struct{})
	s.background.Go(func() {
		defer close(done)
		s.recover(s.storing, s.logLeftover)
	})
	ctx, cancel := context.WithTimeout(ctx, recoverWait)
	defer cancel()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

func (s *filesystem) closeSpool() error {
	if s.spool == nil {
		return nil
	}
	return s.spool.Close()
}

// checkSource makes sure that the bucket is there and may be used, without a
// request outside of what is mounted.
func checkSource(ctx context.Context, o Options) error {
	ctx, cancel := context.WithTimeout(ctx, o.OpTimeout)
	defer cancel()
	var err error
	switch {
	case o.Bucket == "":
		_, err = o.Store.Buckets(ctx)
		if errors.Is(err, store.ErrDenied) {
			return nil // buckets are found by name then
		}
	case o.Prefix == "":
		err = o.Store.BucketExists(ctx, o.Bucket)
	default:
		_, err = o.Store.List(ctx, store.ListRequest{Bucket: o.Bucket, Prefix: o.Prefix, Recursive: true, Max: 1})
	}
	return err
}

func (m *Mounted) kernelOptions() *gofs.Options {
	o := m.fs.o
	name := "s3rdmafs:" + strings.TrimSuffix(m.source, "/")
	// A comma would end the option.
	name = strings.ReplaceAll(name, ",", url.QueryEscape(","))
	ko := &gofs.Options{
		AttrTimeout:     &o.AttrTTL,
		EntryTimeout:    &o.EntryTTL,
		NullPermissions: true,
		RootStableAttr:  &gofs.StableAttr{Ino: fuse.FUSE_ROOT_ID, Gen: 1},
		Logger:          slog.NewLogLogger(o.Logger.Handler(), slog.LevelWarn),
	}
	if o.NegativeTTL > 0 {
		ko.NegativeTimeout = &o.NegativeTTL
	}
	ko.MountOptions = fuse.MountOptions{
		AllowOther:    o.AllowOther,
		FsName:        name,
		Name:          "s3rdmafs",
		MaxWrite:      maxWrite,
		MaxBackground: maxBackground,
		// The kernel checks modes and owners.
		Options: []string{"default_permissions"},
		// Answers are written from where the bytes are; a pipe between would
		// have to be larger than the largest of them.
		DisableSplice:    true,
		DirectMount:      true,
		DirectMountFlags: syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOATIME,
		// Pages live and die with the ETag, see open.
		ExplicitDataCacheControl: true,
		Debug:                    o.Debug,
		Logger:                   log.New(logWriter{o.Logger, o.Debug}, "", 0),
	}
	if o.ReadOnly {
		ko.Options = append(ko.Options, "ro")
		ko.DirectMountFlags |= syscall.MS_RDONLY
	}
	return ko
}

// logWriter passes lines of go-fuse on.
type logWriter struct {
	log   *slog.Logger
	debug bool
}

func (w logWriter) Write(b []byte) (int, error) {
	level := slog.LevelWarn
	if w.debug {
		level = slog.LevelDebug
	}
	w.log.Log(context.Background(), level, strings.TrimSuffix(string(b), "\n"), "from", "fuse")
	return len(b), nil
}

// Mountpoint is the absolute path of the mount.
func (m *Mounted) Mountpoint() string { return m.dir }

// Stats are the counters up to now.
func (m *Mounted) Stats() Stats {
	st := m.fs.stats()
	st.Mountpoint, st.Source = m.dir, m.source
	st.Uptime = time.Since(m.fs.begun).Seconds()
	return st
}

// Wait returns when the file system was unmounted, by whomever, and what was
// dirty is stored. The error lists files that could not be.
func (m *Mounted) Wait() error {
	<-m.finished
	return m.result
}

// Unmount stores what is dirty, takes the mount away and waits until it is
// gone. A mount in use is detached from the tree, and its last users are cut
// off, also when somebody else has unmounted it meanwhile. ctx bounds the
// storing. The error lists files whose data could not be stored and where they
// are kept. Calling it again does nothing more.
func (m *Mounted) Unmount(ctx context.Context) error {
	m.unmounting.Lock()
	defer m.unmounting.Unlock()
	var left error
	select {
	case <-m.gone:
	default:
		m.setDrain(ctx)
		// Open files stay usable while the bulk of it is stored.
		m.fs.drain(ctx)
		left = m.detach()
		m.fs.end()
		if left != nil {
			left = fmt.Errorf("unmount %s: %w", m.dir, left)
		}
		if err := m.awaitGone(ctx); err != nil {
			return errors.Join(left, err)
		}
	}
	<-m.finished
	return errors.Join(left, m.result)
}

// setDrain bounds what finish does by ctx.
func (m *Mounted) setDrain(ctx context.Context) {
	m.fs.mu.Lock()
	m.drain = ctx
	m.fs.mu.Unlock()
}

// detach takes the mount out of the tree and ends the kernel's connection. With
// an error the mount stays there, dead.
func (m *Mounted) detach() error {
	switch there, err := m.onTop(); {
	case err != nil:
		return errors.Join(err, abortConnection(m.conn))
	case there:
		err := unmount(m.dir)
		if errors.Is(err, syscall.EBUSY) {
			m.fs.log.Warn("mount is in use, detaching it", "mountpoint", m.dir)
			err = unmountForced(m.dir, m.conn)
		}
		if err == nil {
			return nil
		}
		if there, _ := m.onTop(); there {
			return errors.Join(err, abortConnection(m.conn))
		}
	}
	// Somebody else was faster. Where that was umount -l, files may be open still.
	select {
	case <-m.gone:
	default:
		if err := abortConnection(m.conn); err != nil && !errors.Is(err, syscall.ENOENT) {
			m.fs.log.Warn("mount was detached by somebody else, and waits for its last users", "mountpoint", m.dir, "err", err)
		}
	}
	return nil
}

// onTop reports whether this mount is what is mounted at its directory; false
// when it is not there any more. Another one on top of it is an error.
func (m *Mounted) onTop() (bool, error) {
	at, err := mountsAt(m.dir)
	if err != nil || m.conn == 0 {
		return err == nil, err
	}
	for i, e := range at {
		if e.ours() && e.device == m.conn {
			if i < len(at)-1 {
				return false, errCovered
			}
			return true, nil
		}
	}
	return false, nil
}

// awaitGone waits for the end of the kernel's connection, which has begun,
// unless somebody still uses the mount and cannot be cut off.
func (m *Mounted) awaitGone(ctx context.Context) error {
	const soon, grace = 2 * time.Second, 10 * time.Second // the kernel takes milliseconds
	wait := time.NewTimer(soon)
	defer wait.Stop()
	select {
	case <-m.gone:
		return nil
	case <-wait.C:
	}
	// It is mounted elsewhere too, as in the namespace of a container.
	err := abortConnection(m.conn)
	wait.Reset(grace)
	select {
	case <-m.gone:
		return nil
	case <-wait.C:
	}
	select {
	case <-m.gone:
		return nil
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("unmount %s: its last users could not be cut off: %w", m.dir, context.Cause(ctx)), err)
	}
}

// finish stores what is left once nobody can write any more, and gives
// everything up.
func (m *Mounted) finish() {
	s := m.fs
	s.mu.Lock()
	ctx := m.drain
	s.mu.Unlock()
	if ctx == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.Background(), s.o.OpTimeout)
		defer cancel()
	}
	errs := s.drain(ctx)
	waited := make(chan struct{})
	go func() {
		s.background.Wait()
		close(waited)
	}()
	select {
	case <-waited:
	case <-ctx.Done():
		s.cancelStoring()
		<-waited
	}
	s.cancelStoring()
	m.result = s.unsaved(errs)
	s.closeHandles()
	m.result = errors.Join(m.result, s.closeSpool())
}

// closeHandles releases what the kernel did not get to release.
func (s *filesystem) closeHandles() {
	s.mu.Lock()
	var open []*handle
	for h := range s.open {
		open = append(open, h)
	}
	s.mu.Unlock()
	for _, h := range open {
		h.Release(context.Background())
	}
	s.n.handles.Store(0) // directories hold nothing
}

// drain tries once to store every dirty file, and returns what failed.
func (s *filesystem) drain(ctx context.Context) map[*file]error {
	s.mu.Lock()
	files := make([]*file, 0, len(s.dirty))
	for f := range s.dirty {
		files = append(files, f)
	}
	s.mu.Unlock()
	var mu sync.Mutex
	failed := map[*file]error{}
	var g errgroup.Group
	g.SetLimit(drainParallel)
	for _, f := range files {
		g.Go(func() error {
			if err := s.upload(ctx, f); err != nil {
				mu.Lock()
				failed[f] = err
				mu.Unlock()
			}
			return nil
		})
	}
	g.Wait()
	return failed
}

// unsaved keeps the content of the files that could not be stored, and names
// them in an error.
func (s *filesystem) unsaved(failed map[*file]error) error {
	s.mu.Lock()
	errs := s.shelved
	files := make(map[*file]string, len(s.dirty))
	for f := range s.dirty {
		files[f] = f.name
		f.mu.Lock()
		if f.lost != nil && failed[f] == nil {
			failed[f] = f.lost
		}
		f.mu.Unlock()
	}
	s.mu.Unlock()
	for f, name := range files {
		cause := failed[f]
		if cause == nil {
			cause = errors.New("written after the last attempt")
		}
		s.mustJournal(f)
		f.mu.Lock()
		if f.spool != nil && f.dirtyData {
			errs = append(errs, keptError(name, f.spool, cause), f.spool.Keep())
			f.spool, f.recorded, f.dirtyData = nil, false, false
		} else {
			errs = append(errs, fmt.Errorf("attributes of %s were not stored: %w", name, cause))
			f.dropSpoolLocked()
		}
		f.mu.Unlock()
	}
	return errors.Join(errs...)
}
