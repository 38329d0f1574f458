package spool

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Leftover is what a process that is gone left. It is in use by nobody else
// until the Spool it came from is closed.
type Leftover struct {
	Record  Record    // zero when Damage is set
	Damage  error     // why it is not understood
	Path    string    // of the content; "" when there is none
	Size    int64     // of the content, bytes
	Changed time.Time // when the content was last written to

	slot *slot
	id   string
	rec  string // path of the record; "" when there is none
}

// Leftovers are those found when the spool was opened, the oldest first, without
// the ones removed since.
func (s *Spool) Leftovers() []*Leftover {
	var out []*Leftover
	for _, l := range s.leftovers {
		if l.Path != "" || l.rec != "" {
			out = append(out, l)
		}
	}
	return out
}

// Trustworthy reports whether the content is whole: that of another boot of the
// machine is only when it was made durable.
func (l *Leftover) Trustworthy() bool {
	return l.Damage == nil && (l.Record.Durable || l.Record.Boot != "" && l.Record.Boot == bootID())
}

// Open opens the content for reading.
func (l *Leftover) Open() (*os.File, error) { return os.Open(l.Path) }

// Update replaces the record. Whether the content is trustworthy does not change.
func (l *Leftover) Update(r Record) error {
	boot, durable := l.Record.Boot, l.Record.Durable
	r.Boot, r.Durable, r.Made = boot, durable, l.Record.Made
	if err := l.slot.replaceRecord(l.id, r, durable); err != nil {
		return err
	}
	l.Record = r
	return nil
}

// Remove deletes content and record: it is stored, or kept elsewhere.
func (l *Leftover) Remove() error {
	for _, p := range []*string{&l.rec, &l.Path} {
		if *p == "" {
			continue
		}
		if err := os.Remove(*p); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("spool: %w", err)
		}
		*p = ""
	}
	return nil
}

// MoveTo moves the content to a file that must not exist, and removes the rest.
func (l *Leftover) MoveTo(path string) error {
	if l.Path == "" {
		return l.Remove()
	}
	err := unix.Renameat2(unix.AT_FDCWD, l.Path, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
	switch {
	case err == nil:
		l.Path = ""
		err = syncDir(filepath.Dir(path))
	case errors.Is(err, unix.EEXIST):
	default: // another file system, or one that has no such rename
		err = l.copyTo(path)
	}
	if err != nil {
		return &os.PathError{Op: "move spooled content to", Path: path, Err: err}
	}
	return l.Remove()
}

func (l *Leftover) copyTo(path string) (err error) {
	from, err := l.Open()
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	if err == nil {
		err = to.Sync()
	}
	if err = errors.Join(err, to.Close()); err == nil {
		err = errors.Join(os.Chtimes(path, l.Changed, l.Changed), syncDir(filepath.Dir(path)))
	}
	if err != nil {
		os.Remove(path)
	}
	return err
}

// scan finds the leftovers of a slot.
func (s *Spool) scan(sl *slot) error {
	entries, err := os.ReadDir(sl.path)
	if err != nil {
		return err
	}
	has := map[string]bool{}
	for _, e := range entries {
		has[e.Name()] = true
	}
	for _, e := range entries {
		name := e.Name()
		ext := filepath.Ext(name)
		id := strings.TrimSuffix(name, ext)
		switch {
		case ext == tempExt:
			err = os.Remove(filepath.Join(sl.path, name))
		case ext == recordExt:
			err = s.scanRecord(sl, id, has[id+dataExt])
		case ext == dataExt && !has[id+recordExt]:
			err = s.scanOrphan(sl, id)
		default:
			err = nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Spool) scanRecord(sl *slot, id string, hasData bool) error {
	r, err := readRecord(sl.file(id, recordExt))
	if err != nil && !errors.Is(err, ErrDamaged) && !errors.Is(err, errNoRecord) {
		return err
	}
	if errors.Is(err, errNoRecord) || errors.Is(err, errEmpty) {
		fi, derr := os.Lstat(sl.file(id, dataExt))
		switch {
		case !hasData || derr == nil && fi.Size() == 0:
			// Not in use, or killed as it was made.
			return errors.Join(removeAny(sl.file(id, recordExt)), removeAny(sl.file(id, dataExt)))
		case errors.Is(err, errNoRecord):
			return s.scanOrphan(sl, id)
		}
	}
	if err != nil || !hasData && r.State != Stored {
		return s.setAside(sl, id)
	}
	l := &Leftover{Record: r, slot: sl, id: id, rec: sl.file(id, recordExt)}
	if hasData && r.State == Stored {
		if err := os.Remove(sl.file(id, dataExt)); err != nil {
			return err
		}
		hasData = false
	}
	if hasData {
		if err := l.setContent(sl.file(id, dataExt)); err != nil {
			return err
		}
	}
	s.leftovers = append(s.leftovers, l)
	return nil
}

// scanOrphan deals with content without a record. A kill leaves some only where
// no change was acknowledged that is not stored; a power loss may have taken the
// record.
func (s *Spool) scanOrphan(sl *slot, id string) error {
	fi, err := os.Lstat(sl.file(id, dataExt))
	if err != nil {
		return err
	}
	if sl.boot != bootID() && fi.Size() > 0 {
		return s.setAside(sl, id)
	}
	return errors.Join(removeAny(sl.file(id, recordExt)), os.Remove(sl.file(id, dataExt)))
}

func readRecord(path string) (Record, error) {
	f, err := os.Open(path)
	if err != nil {
		return Record{}, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err != nil {
		// A bad sector must not keep a mount from starting.
		return Record{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return decode(b)
}

func (l *Leftover) setContent(path string) error {
	fi, err := os.Lstat(path)
	if err != nil {
		return err
	}
	l.Path, l.Size, l.Changed = path, fi.Size(), fi.ModTime()
	return nil
}

// setAside moves what belongs to id out of the way.
func (s *Spool) setAside(sl *slot, id string) error {
	aside := filepath.Join(s.dir, damagedDir)
	if err := privateDir(aside); err != nil {
		return err
	}
	for _, ext := range []string{dataExt, recordExt} {
		err := os.Rename(sl.file(id, ext), filepath.Join(aside, id+ext))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// scanDamaged lists what was set aside, by this and earlier processes.
func (s *Spool) scanDamaged() error {
	aside := filepath.Join(s.dir, damagedDir)
	entries, err := os.ReadDir(aside)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	seen := map[string]*Leftover{}
	for _, e := range entries {
		path := filepath.Join(aside, e.Name())
		ext := filepath.Ext(e.Name())
		if ext != dataExt && ext != recordExt {
			continue
		}
		id := strings.TrimSuffix(e.Name(), ext)
		l := seen[id]
		if l == nil {
			l = &Leftover{Damage: fmt.Errorf("%w: content without a record", ErrDamaged)}
			seen[id] = l
			s.leftovers = append(s.leftovers, l)
		}
		if ext == dataExt {
			if err := l.setContent(path); err != nil {
				return err
			}
			continue
		}
		l.rec = path
		switch _, err := readRecord(path); {
		case err == nil:
			l.Damage = fmt.Errorf("%w: record without its content", ErrDamaged)
		case !errors.Is(err, errNoRecord):
			l.Damage = err
		}
	}
	return nil
}
