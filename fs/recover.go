package fs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"s3rdmafs/spool"
	"s3rdmafs/store"
	"s3rdmafs/verbs"
)

// Outcome is what became of a leftover of a killed mount.
type Outcome int

const (
	// Replayed: its content is stored now.
	Replayed Outcome = iota
	// AlreadyStored: the mount was killed after it had stored the content.
	AlreadyStored
	// Conflict: the object is not the one the content was made from any more.
	Conflict
	// Kept: not tried, or not possible now.
	Kept
	// Damaged: nobody knows what it was meant to become.
	Damaged
	// Aborted: it was nothing but multipart uploads, which are ended now.
	Aborted
	outcomes
)

var outcomeNames = [outcomes]string{"replayed", "already stored", "conflict", "kept", "damaged", "aborted"}

func (o Outcome) String() string { return outcomeNames[o] }

// Recovery counts what became of the leftovers a mount found.
type Recovery struct {
	Replayed       uint64 `json:"replayed"`
	AlreadyStored  uint64 `json:"already_stored"`
	Conflicts      uint64 `json:"conflicts"`
	Kept           uint64 `json:"kept"`
	Damaged        uint64 `json:"damaged"`
	AbortedUploads uint64 `json:"aborted_uploads"`
}

// recoveryCounters are the counted form of Recovery.
type recoveryCounters struct {
	outcomes [outcomes]atomic.Uint64
	aborted  atomic.Uint64
}

func (c *recoveryCounters) read() Recovery {
	n := func(o Outcome) uint64 { return c.outcomes[o].Load() }
	return Recovery{n(Replayed), n(AlreadyStored), n(Conflict), n(Kept), n(Damaged), c.aborted.Load()}
}

var (
	errConflict   = errors.New("the object is not the one it was made from")
	errPowerLoss  = errors.New("the machine went down since, the content may have holes")
	errNoReplay   = errors.New("not asked to replay")
	errOutOfReach = errors.New("not below what is mounted")
)

// Recover deals with the leftovers in sp without mounting anything, and calls
// report for each. Of o it needs Store, Cache, Bucket and Prefix. Leftovers that
// cannot be stored stay where they are.
func Recover(ctx context.Context, sp *spool.Spool, o Options, report func(*spool.Leftover, Outcome, error)) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	s := newFilesystem(o)
	s.spool = sp
	s.recover(ctx, report)
	s.end()
	s.cancelStoring()
	return context.Cause(ctx)
}

// recover deals with everything that was left, the oldest first.
func (s *filesystem) recover(ctx context.Context, report func(*spool.Leftover, Outcome, error)) {
	for _, l := range s.spool.Leftovers() {
		if ctx.Err() != nil {
			return
		}
		out, err := s.recoverOne(ctx, l)
		s.recovery.outcomes[out].Add(1)
		report(l, out, err)
	}
}

// logLeftover tells of one leftover.
func (s *filesystem) logLeftover(l *spool.Leftover, out Outcome, err error) {
	attrs := []any{"outcome", out.String(), "bucket", l.Record.Bucket, "key", l.Record.Key, "bytes", l.Size, "written", l.Changed}
	switch out {
	case Replayed, AlreadyStored, Aborted:
		s.log.Info("content of a killed mount", attrs...)
	default:
		s.log.Warn("content of a killed mount stays in the spool; s3rdmafs recover exports it", append(attrs, "path", l.Path, "why", err)...)
	}
}

func (s *filesystem) recoverOne(ctx context.Context, l *spool.Leftover) (Outcome, error) {
	if l.Damage != nil {
		return Damaged, l.Damage
	}
	r := l.Record
	if s.o.Bucket != "" && r.Bucket != s.o.Bucket || !strings.HasPrefix(r.Key, s.o.Prefix) {
		return Kept, errOutOfReach
	}
	change, err := s.beginChange(ctx, func() []spot { return []spot{{r.Bucket, r.Key}} })
	if err != nil {
		return Kept, err
	}
	defer change.end()
	// Before anything is looked at: what an upload completed before it is ended
	// shows then, and nothing it does shows later.
	aborted := s.abortLeft(ctx, l)
	if l.Record.State == spool.Stored {
		switch {
		case aborted != nil:
			return Kept, aborted
		default:
			return orKept(Aborted, l.Remove())
		}
	}
	out, err := s.replay(ctx, l)
	switch out {
	case Replayed, AlreadyStored:
		if aborted == nil {
			return orKept(out, l.Remove())
		}
		r := l.Record
		r.State = spool.Stored
		return orKept(out, l.Update(r))
	}
	if r := l.Record; err != nil && r.Cause != err.Error() {
		// So that it is listed with its reason.
		r.Cause = err.Error()
		if uerr := l.Update(r); uerr != nil {
			s.log.Warn("record of spooled content is out of date", "err", uerr)
		}
	}
	return out, err
}

// orKept is out, unless the spool could not be changed accordingly.
func orKept(out Outcome, err error) (Outcome, error) {
	if err != nil {
		return Kept, err
	}
	return out, nil
}

// replay stores the content of l, if the bucket is as it was.
func (s *filesystem) replay(ctx context.Context, l *spool.Leftover) (Outcome, error) {
	content, err := l.Open()
	if err != nil {
		return Kept, err
	}
	defer content.Close()
	out, err := s.replayOnce(ctx, l, content)
	if out == Conflict {
		// The server may have been at the killed mount's last request until now.
		out, err = s.replayOnce(ctx, l, content)
	}
	return out, err
}

func (s *filesystem) replayOnce(ctx context.Context, l *spool.Leftover, content io.ReaderAt) (Outcome, error) {
	r := l.Record
	info, cond, err := s.baseOf(ctx, r)
	if err != nil && !errors.Is(err, errConflict) {
		return Kept, err
	}
	if info.ETag != "" && info.ETag != r.Base {
		same, serr := s.sameContent(ctx, info, content, l.Size)
		switch {
		case serr != nil:
			return Kept, serr
		case same:
			return AlreadyStored, nil
		}
	}
	switch {
	case r.State == spool.Lost && r.Cause != "":
		return Conflict, errors.New(r.Cause)
	case err != nil:
		return Conflict, err
	case !l.Trustworthy():
		return Kept, errPowerLoss
	case s.o.NoReplay:
		return Kept, errNoReplay
	}
	_, err = s.put(ctx, ctx, snapshot{
		bucket: r.Bucket, key: r.Key, info: store.Info{ContentType: r.ContentType}, data: true, size: l.Size,
		content: content, meta: r.Meta, cond: cond, uploads: leftUploads{s, l},
	})
	switch {
	case err == nil:
		s.n.uploads.Add(1)
		s.cache.Invalidate(r.Bucket, r.Key)
		return Replayed, nil
	case errors.Is(err, store.ErrPrecondition), errors.Is(err, store.ErrExists), errors.Is(err, store.ErrChanged):
		return Conflict, fmt.Errorf("%w: %w", errConflict, err)
	}
	return Kept, err
}

// baseOf is the object under the key of r, and the condition under which the
// content may take its place: errConflict when it is not what r was made from.
func (s *filesystem) baseOf(ctx context.Context, r spool.Record) (store.Info, store.Cond, error) {
	c, cancel := context.WithTimeout(ctx, s.o.OpTimeout)
	defer cancel()
	info, err := s.store.Head(c, r.Bucket, r.Key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		if r.Base != "" && !r.OrAbsent {
			return store.Info{}, store.Cond{}, fmt.Errorf("%w: it is gone", errConflict)
		}
		return store.Info{}, store.Cond{IfAbsent: true}, nil
	case err != nil:
		return store.Info{}, store.Cond{}, err
	case info.ETag != r.Base:
		return info, store.Cond{}, errConflict
	}
	return info, store.Cond{IfMatch: r.Base}, nil
}

// sameContent reports whether an object has these bytes.
func (s *filesystem) sameContent(ctx context.Context, info store.Info, content io.ReaderAt, size int64) (bool, error) {
	if info.Size != size {
		return false, nil
	}
	have, want := make([]byte, 1<<20), make([]byte, 1<<20)
	for off := int64(0); off < size; {
		n := int(min(int64(len(have)), size-off))
		c, cancel := context.WithTimeout(ctx, s.o.OpTimeout)
		_, err := s.store.Read(c, store.ReadRequest{
			Bucket: info.Bucket, Key: info.Key, ETag: info.ETag, Off: off, Dst: verbs.Segment{Buf: have[:n]}, ObjectSize: size,
		})
		cancel()
		if err == nil {
			_, err = content.ReadAt(want[:n], off)
		}
		if err != nil {
			return false, err
		}
		if !bytes.Equal(have[:n], want[:n]) {
			return false, nil
		}
		off += int64(n)
	}
	return true, nil
}

// abortLeft ends the uploads that the record of l names.
func (s *filesystem) abortLeft(ctx context.Context, l *spool.Leftover) error {
	var errs []error
	r := l.Record
	for _, u := range r.Uploads {
		n, err := s.abortUpload(ctx, u)
		s.recovery.aborted.Add(n)
		if err != nil {
			errs = append(errs, fmt.Errorf("multipart upload of %q: %w", u.Key, err))
			continue
		}
		r.Uploads = without(r.Uploads, u)
	}
	if len(r.Uploads) != len(l.Record.Uploads) {
		if err := l.Update(r); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// maxClockSkew between this machine and the server that SigV4 allows.
const maxClockSkew = 15 * time.Minute

// abortUpload ends one upload and reports how many there were. One whose id was
// never told cannot have parts: any of the key without parts that began about
// then is taken for it.
func (s *filesystem) abortUpload(ctx context.Context, u spool.Upload) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.o.OpTimeout)
	defer cancel()
	if u.ID != "" {
		return 1, s.store.AbortUpload(ctx, u.Bucket, u.Key, u.ID)
	}
	all, err := s.store.Uploads(ctx, u.Bucket, u.Key)
	if err != nil {
		return 0, err
	}
	var n uint64
	for _, o := range all {
		if o.Key != u.Key || o.Started.Before(u.Begun.Add(-maxClockSkew)) {
			continue
		}
		parts, err := s.store.HasParts(ctx, u.Bucket, o.Key, o.ID)
		if err == nil && !parts {
			n++
			err = s.store.AbortUpload(ctx, u.Bucket, o.Key, o.ID)
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// leftUploads notes the uploads of a leftover in its record.
type leftUploads struct {
	s *filesystem
	l *spool.Leftover
}

func (l leftUploads) begins(u spool.Upload) { l.update(noted(l.l.Record.Uploads, u)) }
func (l leftUploads) ended(u spool.Upload)  { l.update(without(l.l.Record.Uploads, u)) }

func (l leftUploads) update(uploads []spool.Upload) {
	r := l.l.Record
	r.Uploads = uploads
	if err := l.l.Update(r); err != nil {
		l.s.log.Warn("record of spooled content is out of date", "err", err)
	}
}

// openSpool opens the place for content being written. A default that cannot be
// used gives way to one among the temporary files.
func (s *filesystem) openSpool() error {
	id := spool.Identity{Endpoint: s.store.Endpoint().String(), Bucket: s.o.Bucket, Prefix: s.o.Prefix}
	so := spool.Options{Size: s.o.SpoolSize, Reserve: s.o.SpoolReserve}
	root, err := s.o.SpoolDir, error(nil)
	if root == "" {
		root, err = spool.DefaultRoot()
	}
	if err == nil {
		s.spool, err = spool.Open(root, id, so)
	}
	if err != nil && s.o.SpoolDir == "" {
		temp := fmt.Sprintf("%s/s3rdmafs-spool-%d", os.TempDir(), os.Geteuid())
		s.log.Warn("spool is among the temporary files", "dir", temp, "why", err)
		s.spool, err = spool.Open(temp, id, so)
	}
	return err
}
