package fs

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Why a directory cannot be a mount point.
var (
	ErrNoMountpoint = errors.New("mount point does not exist")
	ErrNotDirectory = errors.New("mount point is not a directory")
	ErrNotEmpty     = errors.New("mount point is not empty")
	ErrMounted      = errors.New("mount point already has an s3rdmafs mount")
	errCovered      = errors.New("another mount covers it")
	errNoFusermount = errors.New("neither the right to unmount nor fusermount3")
)

const fuseConnections = "/sys/fs/fuse/connections"

// CheckMountpoint tells whether dir can be mounted on, in one of the errors
// above. A dead mount there is no obstacle: Mount takes it away.
func CheckMountpoint(dir string) error {
	dir, err := resolveMountpoint(dir)
	if err != nil {
		return err
	}
	if isDead(dir) {
		return nil
	}
	var st unix.Stat_t
	switch err := unix.Stat(dir, &st); {
	case errors.Is(err, syscall.ENOENT):
		return fmt.Errorf("%w: %s", ErrNoMountpoint, dir)
	case err != nil:
		return fmt.Errorf("mount point %s: %w", dir, err)
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		return fmt.Errorf("%w: %s", ErrNotDirectory, dir)
	}
	switch _, err := FindMount(dir); {
	case err == nil:
		return fmt.Errorf("%w: %s", ErrMounted, dir)
	case !errors.Is(err, ErrNotMounted):
		return err
	}
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("mount point: %w", err)
	}
	defer f.Close()
	switch _, err := f.Readdirnames(1); {
	case err == nil:
		return fmt.Errorf("%w: %s", ErrNotEmpty, dir)
	case err != io.EOF:
		return fmt.Errorf("mount point: %w", err)
	}
	return nil
}

// isDead reports whether a file system whose server is gone is mounted at dir.
// The kernel may answer stat(2) from memory, statfs(2) it does not.
func isDead(dir string) bool {
	var st unix.Statfs_t
	err := unix.Statfs(dir, &st)
	return errors.Is(err, syscall.ENOTCONN) || errors.Is(err, syscall.ECONNABORTED)
}

// clearDeadMount takes away what is left of mounts at dir whose servers died.
func clearDeadMount(dir string, log *slog.Logger) error {
	for isDead(dir) { // they can lie on top of each other
		if err := unmountLazily(dir); err != nil {
			return fmt.Errorf("dead mount at %s cannot be cleared: %w", dir, err)
		}
		log.Warn("cleared a dead mount", "mountpoint", dir)
	}
	return nil
}

// resolveMountpoint is dir as the table of mounts has it. The last component
// is not followed when it cannot be, as that of a dead mount.
func resolveMountpoint(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		return real, nil
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return abs, nil
	}
	return filepath.Join(parent, filepath.Base(abs)), nil
}

// unmount takes the mount at dir away; EBUSY when it is in use.
func unmount(dir string) error {
	err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
	if !errors.Is(err, syscall.EPERM) {
		return err
	}
	return fusermount("-u", dir)
}

// unmountLazily takes the mount at dir out of the tree, whoever uses it.
func unmountLazily(dir string) error {
	err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if !errors.Is(err, syscall.EPERM) {
		return err
	}
	return fusermount("-uz", dir)
}

// fusermount calls the helper for users who may not unmount by themselves.
func fusermount(flag, dir string) error {
	for _, name := range []string{"fusermount3", "fusermount"} {
		bin, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		out, err := exec.Command(bin, flag, "--", dir).CombinedOutput()
		if err == nil {
			return nil
		}
		if strings.Contains(string(out), "busy") {
			return syscall.EBUSY
		}
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return errNoFusermount
}

// TakeAway unmounts the file system at dir, of which another process is the
// server. A dead one goes whoever uses it; of a living one that is in use the
// error is EBUSY.
func TakeAway(dir string) error {
	dir, err := FindMount(dir)
	if err != nil {
		return err
	}
	if isDead(dir) {
		return unmountLazily(dir)
	}
	return unmount(dir)
}

// unmountForced takes a mount that is in use out of the tree and ends its
// connection, of which conn is the number.
func unmountForced(dir string, conn uint32) error {
	err := unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if !errors.Is(err, syscall.EPERM) {
		return err
	}
	if err := fusermount("-uz", dir); err != nil {
		return err
	}
	if err := abortConnection(conn); err != nil {
		return fmt.Errorf("it is detached, but still in use: %w", err)
	}
	return nil
}

// abortConnection cuts off whoever uses a mount, wherever it still is. conn is
// the number of its connection, 0 when unknown.
func abortConnection(conn uint32) error {
	if conn == 0 {
		return errors.New("number of the connection unknown")
	}
	return os.WriteFile(fmt.Sprintf("%s/%d/abort", fuseConnections, conn), []byte("1"), 0)
}
