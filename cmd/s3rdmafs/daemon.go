package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
)

// readyEnv names the descriptor on which a mount in the background tells its
// parent how the start went.
const readyEnv = "S3RDMAFS_READY_FD"

// verdict is what a mount's process says once of its start, and once of its end.
// An empty Error means that all is well.
type verdict struct {
	Error string   `json:"error,omitempty"`
	Notes []string `json:"notes,omitempty"` // what the user should know all the same
}

// startInBackground runs this command again, detached, and returns when the
// child says that the mount answers, or why it does not.
func startInBackground(logFile string) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own program: %w", err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()
	child := exec.Command(exe, os.Args[1:]...)
	child.ExtraFiles = []*os.File{write}
	child.Env = append(os.Environ(), readyEnv+"=3")
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if logFile != "" {
		// A crash report of the Go runtime goes where the log goes.
		f, err := openLog(logFile)
		if err != nil {
			return err
		}
		defer f.Close()
		child.Stdout, child.Stderr = f, f
	}
	if err := child.Start(); err != nil {
		return fmt.Errorf("start in background: %w", err)
	}
	write.Close()

	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(interrupted)
	answer := make(chan verdict, 1)
	go func() {
		var v verdict
		line, err := bufio.NewReader(read).ReadBytes('\n')
		if err != nil || json.Unmarshal(line, &v) != nil {
			v.Error = "the mount's process ended before the mount answered"
			if state := child.Wait(); state != nil {
				v.Error += ": " + state.Error()
			}
		}
		answer <- v
	}()
	select {
	case v := <-answer:
		if v.Error != "" {
			return errors.New(v.Error)
		}
		for _, note := range v.Notes {
			fmt.Fprintf(os.Stderr, "s3rdmafs: note: %s\n", note)
		}
		return child.Process.Release()
	case s := <-interrupted:
		if err := child.Process.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		<-answer
		return fmt.Errorf("interrupted (%v) before the mount answered", s)
	}
}

// background tells whether this process is the detached child, and returns
// the function that reports the verdict to the parent; nil when it is not.
func background() (func(error, []string), error) {
	value := os.Getenv(readyEnv)
	if value == "" {
		return nil, nil
	}
	fd, err := strconv.Atoi(value)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("%s=%q is not a descriptor", readyEnv, value)
	}
	if err := os.Unsetenv(readyEnv); err != nil {
		return nil, err
	}
	syscall.CloseOnExec(fd)
	pipe := os.NewFile(uintptr(fd), "ready")
	return func(startErr error, notes []string) {
		v := verdict{Notes: notes}
		if startErr != nil {
			v.Error = startErr.Error()
		}
		// The parent may be gone; the mount is none the worse for it.
		_ = json.NewEncoder(pipe).Encode(v)
		pipe.Close()
	}, nil
}
