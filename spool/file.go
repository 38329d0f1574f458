package spool

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
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

	// use is held shared by whoever reads or changes the content, and alone by
	// the end: the data file may be another File's right after it. Taken after mu.
	use  sync.RWMutex
	gone bool // guarded by use
}

// begin makes sure that the content stays f's until the caller releases f.use.
func (f *File) begin() error {
	f.use.RLock()
	if f.gone {
		f.use.RUnlock()
		return fmt.Errorf("spool: %w", os.ErrClosed)
	}
	return nil
}

// end waits for those who use the content, and lets nobody in any more.
func (f *File) end() {
	f.use.Lock()
	f.gone = true
	f.use.Unlock()
}

// idle is a file that has ended, empty and without a record: to make it anew is
// much cheaper than to make another one.
type idle struct {
	id   string
	data *os.File
}

// maxIdle is how many of them are kept.
const maxIdle = 64

// Create makes an empty file without a record.
func (s *Spool) Create() (*File, error) {
	own, i := s.takeIdle()
	switch {
	case own == nil:
		return nil, errors.New("spool: closed, or opened for recovery only")
	case i.data != nil:
		return &File{s: s, slot: own, id: i.id, data: i.data}, nil
	}
	var b [8]byte
	rand.Read(b[:])
	id := hex.EncodeToString(b[:])
	f, err := os.OpenFile(own.file(id, dataExt), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	return &File{s: s, slot: own, id: id, data: f}, nil
}

// Path is where the content is on the disk.
func (f *File) Path() string { return f.data.Name() }

// ReadAt is as that of os.File.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	if err := f.begin(); err != nil {
		return 0, err
	}
	defer f.use.RUnlock()
	return f.data.ReadAt(p, off)
}

// WriteAt is as that of os.File. An error wraps ENOSPC where the spool's limit or
// the reserve of its file system would be passed.
func (f *File) WriteAt(p []byte, off int64) (int, error) {
	if err := f.begin(); err != nil {
		return 0, err
	}
	defer f.use.RUnlock()
	if err := f.s.reserve(int64(len(p))); err != nil {
		return 0, err
	}
	n, err := f.data.WriteAt(p, off)
	f.s.charge(f, int64(len(p)))
	return n, err
}

// Truncate sets the size; growing takes no room.
func (f *File) Truncate(size int64) error {
	if err := f.begin(); err != nil {
		return err
	}
	defer f.use.RUnlock()
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
	if err := f.slot.writeInPlace(f.id, []byte(noRecord)); err != nil {
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
	var err error
	if f.record.State != Stored {
		err = f.clearRecord()
	}
	f.ended = true
	f.end()
	f.s.release(f)
	if !f.has && err == nil && f.data.Truncate(0) == nil && f.s.keepIdle(idle{f.id, f.data}) {
		return nil
	}
	if !f.has {
		err = errors.Join(err, removeAny(f.slot.file(f.id, recordExt)))
	}
	return errors.Join(err, os.Remove(f.Path()), f.data.Close())
}

// takeIdle is the own slot, nil when there is none, and a file to use again, when
// there is one.
func (s *Spool) takeIdle() (own *slot, i idle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.idle); n > 0 {
		i = s.idle[n-1]
		s.idle = s.idle[:n-1]
	}
	return s.own, i
}

// keepIdle keeps a file for the next Create; false when there are enough.
func (s *Spool) keepIdle(i idle) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own == nil || len(s.idle) >= maxIdle {
		return false
	}
	s.idle = append(s.idle, i)
	return true
}

// removeAny removes a file that need not be there.
func removeAny(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
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
	f.end()
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

// pageSize is how much of a write a kill leaves done or not, as a whole.
const pageSize = 4096

// replaceRecord writes a record whole or not at all, as far as a kill goes; with
// sync, which takes it to the disk, also at a power loss.
func (s *slot) replaceRecord(id string, r Record, sync bool) error {
	b, err := r.encode()
	if err != nil {
		return err
	}
	if len(b) <= pageSize && !sync {
		if err := s.writeInPlace(id, b); err != nil {
			return fmt.Errorf("spool: %w", err)
		}
		return nil
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

// writeInPlace writes at most a page over the record of id.
func (s *slot) writeInPlace(id string, b []byte) error {
	f, err := os.OpenFile(s.file(id, recordExt), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, 0)
	return errors.Join(err, f.Close())
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
