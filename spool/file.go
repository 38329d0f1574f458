package spool

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	dataExt   = ".data"
	recordExt = ".rec"
	tempExt   = ".tmp"
)

// File is the content of one file being written. Its methods may be called
// concurrently; who needs order among reads and writes brings it.
type File struct {
	s    *Spool
	slot *slot
	id   string
	data *os.File

	mu      sync.Mutex
	record  Record
	has     bool  // a record is on the disk
	ended   bool  // by Discard or Keep
	charged int64 // bytes; guarded by s.mu
}

// Create makes an empty file without a record.
func (s *Spool) Create() (*File, error) {
	if s.own == nil {
		return nil, errors.New("spool: opened for recovery only")
	}
	var b [8]byte
	rand.Read(b[:])
	id := hex.EncodeToString(b[:])
	f, err := os.OpenFile(filepath.Join(s.own.path, id+dataExt), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	return &File{s: s, slot: s.own, id: id, data: f}, nil
}

// Path is where the content is on the disk.
func (f *File) Path() string { return f.data.Name() }

// ReadAt is as that of os.File.
func (f *File) ReadAt(p []byte, off int64) (int, error) { return f.data.ReadAt(p, off) }

// WriteAt is as that of os.File. An error wraps ENOSPC where the spool's limit or
// the reserve of its file system would be passed.
func (f *File) WriteAt(p []byte, off int64) (int, error) {
	if err := f.s.reserve(int64(len(p))); err != nil {
		return 0, err
	}
	n, err := f.data.WriteAt(p, off)
	f.s.charge(f, int64(len(p)))
	return n, err
}

// Truncate sets the size; growing takes no room.
func (f *File) Truncate(size int64) error {
	err := f.data.Truncate(size)
	f.s.charge(f, 0)
	return err
}

// SetRecord makes r the record of the file: after a kill the old or the new one
// is found.
func (f *File) SetRecord(r Record) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return os.ErrClosed
	}
	if err := f.slot.writeRecord(f.id, &r, false); err != nil {
		return err
	}
	f.record, f.has = r, true
	return nil
}

// ClearRecord says that the content is stored. It is kept for ReadAt, but no
// longer than the process.
func (f *File) ClearRecord() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.clearRecord()
}

func (f *File) clearRecord() error {
	if !f.has || f.ended {
		return nil
	}
	if err := os.Remove(f.slot.file(f.id, recordExt)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("spool: %w", err)
	}
	f.has = false
	return nil
}

// Discard closes the file and frees its room. Its record goes too, unless it is
// Stored and names uploads to abort. Calling it again does nothing.
func (f *File) Discard() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.discard()
}

func (f *File) discard() error {
	if f.ended {
		return nil
	}
	var errs []error
	if f.record.State != Stored {
		errs = append(errs, f.clearRecord())
	}
	f.ended = true
	errs = append(errs, os.Remove(f.Path()), f.data.Close())
	f.s.release(f)
	return errors.Join(errs...)
}

// Keep closes the file and leaves content and record on the disk, durable also
// against a power loss. Without a record it is Discard.
func (f *File) Keep() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.has {
		return f.discard()
	}
	if f.ended {
		return nil
	}
	f.ended = true
	err := f.data.Sync()
	if err == nil {
		err = f.slot.writeRecord(f.id, &f.record, true)
	}
	return errors.Join(err, f.data.Close())
}

// writeRecord replaces the record of id, and fills what the package sets.
func (s *slot) writeRecord(id string, r *Record, durable bool) error {
	r.Made, r.Boot, r.Durable = time.Now().Round(0), bootID(), durable
	return s.replaceRecord(id, *r, durable)
}

// replaceRecord writes a record whole or not at all; sync takes it to the disk.
func (s *slot) replaceRecord(id string, r Record, sync bool) error {
	b, err := r.encode()
	if err != nil {
		return err
	}
	temp := s.file(id, tempExt)
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err == nil {
		_, err = f.Write(b)
		if err == nil && sync {
			err = f.Sync()
		}
		if err = errors.Join(err, f.Close()); err == nil {
			err = os.Rename(temp, s.file(id, recordExt))
		}
	}
	if err == nil && sync {
		err = syncDir(s.path)
	}
	if err != nil {
		os.Remove(temp)
		return fmt.Errorf("spool: %w", err)
	}
	return nil
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
