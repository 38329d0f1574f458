package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

type umountCmd struct {
	Mountpoint string        `arg:"" help:"The directory it is mounted at." type:"path"`
	Timeout    time.Duration `default:"5m" help:"How long to wait for the mount's process to end."`
}

func (c *umountCmd) Run() error {
	dir, err := findMount(c.Mountpoint)
	if err != nil {
		return err
	}
	// Only a living mount can name its process; a dead one is just cleared.
	pid := 0
	var dead bool
	var end net.Conn
	switch stats, err := readStats(dir); {
	case err == nil:
		pid = stats.pid
		if end = endOf(stats.end); end != nil {
			defer end.Close()
		}
	case errors.Is(err, unix.ENOTCONN):
		dead = true
	default:
		return err
	}
	pidfd := -1
	if pid > 0 {
		// Opened before the unmount, so that the number cannot have been given to another process.
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			pidfd = fd
			defer unix.Close(fd)
		}
	}
	if err := unmount(dir, dead); err != nil {
		return err
	}
	deadline := time.Now().Add(c.Timeout)
	var endErr error
	if end != nil {
		v, err := readEnd(end, deadline)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("unmounted, but process %d is still storing data after %v; its log tells more", pid, c.Timeout)
		case err != nil:
			return fmt.Errorf("unmounted, but process %d ended without a word on whether everything was stored: %w", pid, err)
		case v.Error != "":
			endErr = fmt.Errorf("unmounted, but: %s", v.Error)
		}
	}
	if pidfd >= 0 {
		if err := waitExit(pidfd, pid, time.Until(deadline)); err != nil {
			return errors.Join(endErr, err)
		}
	}
	return endErr
}

func unmount(dir string, dead bool) error {
	flags := unix.UMOUNT_NOFOLLOW
	if dead {
		flags |= unix.MNT_DETACH
	}
	err := unix.Unmount(dir, flags)
	if errors.Is(err, unix.EPERM) {
		args := []string{"-u", dir}
		if dead {
			args = []string{"-u", "-z", dir}
		}
		out, ferr := exec.Command("fusermount3", args...).CombinedOutput()
		if ferr == nil {
			return nil
		}
		return fmt.Errorf("unmount %s: %s", dir, strings.TrimSpace(string(out)))
	}
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%s is in use: a program has a file open or its working directory there (fuser -vm %s names it)", dir, dir)
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return nil
}

func waitExit(pidfd, pid int, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("unmounted, but process %d is still storing data after %v; its log tells more", pid, timeout)
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for process %d: %w", pid, err)
		}
		if n > 0 {
			return nil
		}
	}
}

// findMount returns dir as the mount table has it. The table answers for dead
// mounts as well.
func findMount(dir string) (string, error) {
	real := dir
	if resolved, err := filepath.EvalSymlinks(dir); err == nil {
		real = resolved
	} else if parent, err := filepath.EvalSymlinks(filepath.Dir(dir)); err == nil {
		// A dead mount cannot be resolved itself, its parent can.
		real = filepath.Join(parent, filepath.Base(dir))
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		sep := -1
		for i, f := range fields {
			if f == "-" {
				sep = i
			}
		}
		if len(fields) > 4 && sep >= 0 && sep+1 < len(fields) &&
			unescapeMount(fields[4]) == real && fields[sep+1] == "fuse.s3rdmafs" {
			return real, nil
		}
	}
	return "", fmt.Errorf("no s3rdmafs is mounted at %s", dir)
}

// unescapeMount undoes the octal escapes of /proc/self/mountinfo.
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
