package spool

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Identity is what a mount shows; only mounts of the same identity see each
// other's leftovers.
type Identity struct {
	Endpoint string `json:"endpoint"` // URL
	Bucket   string `json:"bucket"`   // "" means all buckets
	Prefix   string `json:"prefix"`   // "" or ending in "/"
}

func (i Identity) String() string { return "s3://" + i.Bucket + strings.TrimSuffix("/"+i.Prefix, "/") }

// dirName is the name of the identity's directory.
func (i Identity) dirName() string {
	sum := sha256.Sum256([]byte(i.Endpoint + "\x00" + i.Bucket + "\x00" + i.Prefix))
	return hex.EncodeToString(sum[:16])
}

const (
	identityFile = "identity"
	damagedDir   = "damaged"
	lockFile     = "lock"
)

// Options of a spool.
type Options struct {
	// Size is how much room files may take on the disk, bytes; 0 means no limit.
	Size int64
	// Reserve is what has to stay free on the file system, bytes; 0 means 1 GiB,
	// or 5 % of a small one, a negative value nothing.
	Reserve int64
}

// Spool is a locked place for the files of one mount.
type Spool struct {
	o     Options
	dir   string  // of the identity
	own   *slot   // nil when made by Adopt
	slots []*slot // all that are locked here
	busy  int

	leftovers []*Leftover

	mu   sync.Mutex
	used int64 // bytes
	idle []idle
}

// slot is a directory that one process has locked.
type slot struct {
	path string
	lock *os.File
	boot string // in which it was last used, "" when new
}

func (s *slot) file(id, ext string) string { return filepath.Join(s.path, id+ext) }

// DefaultRoot is where spools are unless told otherwise: below /var/lib for root,
// else below XDG_STATE_HOME.
func DefaultRoot() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/s3rdmafs/spool", nil
	}
	state := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(state) {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("spool: %w", err)
		}
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, "s3rdmafs", "spool"), nil
}

// Open locks a slot below root for a mount of id, and takes over the leftovers
// in slots that no living process has.
func Open(root string, id Identity, o Options) (*Spool, error) {
	s, err := open(root, id, true)
	if err != nil {
		return nil, err
	}
	s.o = o
	if o.Reserve == 0 {
		if s.o.Reserve, err = s.defaultReserve(); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// Adopt takes over leftovers as Open does, and has no room for files.
func Adopt(root string, id Identity) (*Spool, error) { return open(root, id, false) }

// open tries again when another process has just removed an empty directory.
func open(root string, id Identity, own bool) (*Spool, error) {
	var s *Spool
	var err error
	for range 100 {
		s, err = openOnce(root, id, own)
		if !errors.Is(err, os.ErrNotExist) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("spool directory: %w", err)
	}
	return s, nil
}

func openOnce(root string, id Identity, own bool) (_ *Spool, err error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, err
	}
	s := &Spool{dir: filepath.Join(root, id.dirName())}
	if err := privateDir(s.dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if err := writeIdentity(s.dir, id); err != nil {
		return nil, err
	}
	numbers, err := slotNumbers(s.dir)
	if err != nil {
		return nil, err
	}
	next := 1
	for _, n := range numbers {
		next = n + 1
		if err := s.take(n); err != nil {
			return nil, err
		}
	}
	for ; own && len(s.slots) == 0; next++ {
		if err := s.take(next); err != nil {
			return nil, err
		}
	}
	for _, sl := range s.slots {
		if err := s.scan(sl); err != nil {
			return nil, err
		}
	}
	if err := s.scanDamaged(); err != nil {
		return nil, err
	}
	slices.SortStableFunc(s.leftovers, func(a, b *Leftover) int { return a.Record.Made.Compare(b.Record.Made) })
	if own {
		s.own = s.slots[0]
	}
	return s, nil
}

// privateDir makes a directory, or sees that it is the user's own.
func privateDir(path string) error {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return &os.PathError{Op: "open", Path: path, Err: syscall.ENOTDIR}
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to user %d", path, st.Uid)
	case st.Mode&0o077 != 0:
		return os.Chmod(path, 0o700)
	}
	return nil
}

func writeIdentity(dir string, id Identity) error {
	path := filepath.Join(dir, identityFile)
	if have, err := readIdentity(dir); err == nil && have == id {
		return nil
	}
	b, err := json.Marshal(id)
	if err != nil {
		return err
	}
	temp := path + "-" + strconv.Itoa(os.Getpid())
	if err := os.WriteFile(temp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

func readIdentity(dir string) (id Identity, err error) {
	b, err := os.ReadFile(filepath.Join(dir, identityFile))
	if err == nil {
		err = json.Unmarshal(b, &id)
	}
	return id, err
}

// Identities lists those that have a directory below root.
func Identities(root string) ([]Identity, error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("spool directory: %w", err)
	}
	var out []Identity
	for _, e := range entries {
		id, err := readIdentity(filepath.Join(root, e.Name()))
		if err == nil && id.dirName() == e.Name() {
			out = append(out, id)
		}
	}
	return out, nil
}

// slotNumbers are those of the slots in dir, in order.
func slotNumbers(dir string) ([]int, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []int
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil && n > 0 {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out, nil
}

// take locks slot n unless a living process has it.
func (s *Spool) take(n int) error {
	path := filepath.Join(s.dir, strconv.Itoa(n))
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	f, err := os.OpenFile(filepath.Join(path, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			s.busy++
			return nil
		}
		return &os.PathError{Op: "flock", Path: f.Name(), Err: err}
	}
	// Who removed the slot held the lock while doing so.
	mine, err := f.Stat()
	var there os.FileInfo
	if err == nil {
		there, err = os.Stat(f.Name())
	}
	if err == nil && !os.SameFile(mine, there) {
		err = os.ErrNotExist
	}
	var boot []byte
	if err == nil {
		boot, err = os.ReadFile(f.Name())
	}
	if err == nil {
		_, err = f.WriteAt([]byte(bootID()), 0)
	}
	if err != nil {
		f.Close()
		return err
	}
	s.slots = append(s.slots, &slot{path: path, lock: f, boot: string(boot)})
	return nil
}

// Busy is how many slots living processes had when this one was opened.
func (s *Spool) Busy() int { return s.busy }

// Close gives the slots free, and removes what is empty. Files must have ended.
func (s *Spool) Close() error {
	var errs []error
	s.mu.Lock()
	for _, i := range s.idle {
		errs = append(errs, i.data.Close())
	}
	s.idle, s.own = nil, nil
	s.mu.Unlock()
	for _, sl := range s.slots {
		errs = append(errs, sl.close())
	}
	s.slots = nil
	entries, err := os.ReadDir(s.dir)
	if err == nil && len(entries) == 1 && entries[0].Name() == identityFile {
		// Another process may have come meanwhile; it tries again, or the
		// directory is not empty.
		os.Remove(filepath.Join(s.dir, identityFile))
		os.Remove(s.dir)
	}
	return errors.Join(errs...)
}

// close removes content without a record, and the slot when that was all.
func (s *slot) close() error {
	entries, err := os.ReadDir(s.path)
	left := 0
	for _, e := range entries {
		id, isData := strings.CutSuffix(e.Name(), dataExt)
		if isData {
			if _, rerr := readRecord(s.file(id, recordExt)); errors.Is(rerr, errNoRecord) || errors.Is(rerr, os.ErrNotExist) {
				os.Remove(s.file(id, dataExt))
				os.Remove(s.file(id, recordExt))
			}
		}
	}
	if entries, err = os.ReadDir(s.path); err == nil {
		left = len(entries) - 1 // the lock
	}
	if err == nil && left == 0 {
		os.Remove(s.lock.Name())
		os.Remove(s.path)
	}
	return errors.Join(err, s.lock.Close())
}

// bootID names this boot of the machine, "" where it has no name: then nothing
// of another process is trusted to be whole but what was made durable.
var bootID = sync.OnceValue(func() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
})
