package fs

import (
	"errors"
	"os"

	"s3rdmafs/spool"
)

// journal brings the record of f's spool in line with the state of f: one as
// long as there is content to store, or an upload to abort. Who changed what a
// record holds calls it afterwards; the last call sees the last state.
func (s *filesystem) journal(f *file) error {
	f.journaling.Lock()
	defer f.journaling.Unlock()
	s.mu.Lock()
	f.mu.Lock()
	sp := f.spool
	unsaved := f.dirtyData && !f.unlinked
	r := s.recordLocked(f)
	f.mu.Unlock()
	s.mu.Unlock()
	if sp == nil {
		return nil
	}
	var err error
	switch {
	case unsaved:
		err = sp.SetRecord(r)
	case len(r.Uploads) > 0:
		r.State = spool.Stored
		err = sp.SetRecord(r)
	default:
		err = sp.ClearRecord()
	}
	if errors.Is(err, os.ErrClosed) {
		return nil // stored and dropped meanwhile
	}
	f.mu.Lock()
	f.recorded = unsaved && err == nil
	f.mu.Unlock()
	return err
}

// recordLocked is the record of f as it is. Caller holds filesystem.mu and f.mu.
func (s *filesystem) recordLocked(f *file) spool.Record {
	r := spool.Record{
		Meta: s.metaOf(f.info.Meta, f.attributes, f.kind()), ContentType: f.info.ContentType,
		State: spool.Written, Uploads: append([]spool.Upload(nil), f.uploads...),
	}
	r.Bucket, r.Key = s.lastPlaceLocked(f)
	switch {
	case f.overwrite:
		r.Base, r.OrAbsent = f.replaces, true
	case f.stored:
		r.Base = f.info.ETag
	}
	if f.lost != nil {
		r.State, r.Cause = spool.Lost, f.lost.Error()
	}
	return r
}

// rejournal is journal for a file that has content to store, where nothing can
// be undone any more.
func (s *filesystem) rejournal(f *file) {
	f.mu.Lock()
	recorded := f.recorded
	f.mu.Unlock()
	if recorded {
		s.mustJournal(f)
	}
}

// mustJournal is journal where nothing can be undone any more.
func (s *filesystem) mustJournal(f *file) {
	if err := s.journal(f); err != nil {
		bucket, key, _ := s.place(f)
		s.log.Error("record of spooled content is out of date", "bucket", bucket, "key", key, "err", err)
	}
}

// uploadLog is told of the multipart uploads of a snapshot.
type uploadLog interface {
	// begins is called before the server is asked, and again with the id.
	begins(spool.Upload)
	// ended: nothing of it is on the server any more.
	ended(spool.Upload)
}

// fileUploads notes the uploads of a file in its record.
type fileUploads struct{ f *file }

func (l fileUploads) begins(u spool.Upload) {
	l.f.mu.Lock()
	l.f.uploads = noted(l.f.uploads, u)
	l.f.mu.Unlock()
	l.f.fs.mustJournal(l.f)
}

// ended leaves the record to who ends the upload of the file, right after.
func (l fileUploads) ended(u spool.Upload) {
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	l.f.uploads = without(l.f.uploads, u)
}

// noted is uploads with u, in place of what was known of it before.
func noted(uploads []spool.Upload, u spool.Upload) []spool.Upload {
	return append(without(uploads, u), u)
}

func without(uploads []spool.Upload, u spool.Upload) []spool.Upload {
	var out []spool.Upload
	for _, o := range uploads {
		if !o.Begun.Equal(u.Begun) || o.Bucket != u.Bucket || o.Key != u.Key {
			out = append(out, o)
		}
	}
	return out
}
