package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"s3rdmafs/fs"
)

type umountCmd struct {
	Mountpoint string        `arg:"" help:"The directory it is mounted at." type:"path"`
	Timeout    time.Duration `default:"5m" help:"How long to wait for the mount's process to end."`
}

func (c *umountCmd) Run() error {
	dir, err := fs.FindMount(c.Mountpoint)
	if err != nil {
		return err
	}
	// Only a living mount can name its process; a dead one is just cleared.
	pid := 0
	var end *endWatch
	switch stats, err := readStats(dir); {
	case err == nil:
		pid = stats.pid
		if end = watchEnd(stats.end); end != nil {
			defer end.close()
		}
	case !errors.Is(err, unix.ENOTCONN):
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
	if err := unmount(dir); err != nil {
		return err
	}
	deadline := time.Now().Add(c.Timeout)
	var endErr error
	if end != nil {
		v, err := end.verdict(deadline)
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

func unmount(dir string) error {
	err := fs.TakeAway(dir)
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
