package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"log/syslog"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
)

// readyEnv names the descriptor on which a mount in the background tells its
// parent how the start went.
const readyEnv = "S3RDMAFS_READY_FD"

// verdict is what the child writes once: an empty Error means mounted.
type verdict struct {
	Error string `json:"error,omitempty"`
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
func background() (func(error), error) {
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
	return func(startErr error) {
		var v verdict
		if startErr != nil {
			v.Error = startErr.Error()
		}
		// The parent may be gone; the mount is none the worse for it.
		_ = json.NewEncoder(pipe).Encode(v)
		pipe.Close()
	}, nil
}

func openLog(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, fmt.Errorf("log file: %w", err)
	}
	return f, nil
}

// newLogger logs to the file, else in the foreground to stderr, else to syslog
// where there is one.
func newLogger(file, level string, foreground bool) (*slog.Logger, error) {
	var min slog.Level
	if err := min.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level %q: want debug, info, warn or error", level)
	}
	var out io.Writer = io.Discard
	switch {
	case file != "":
		f, err := openLog(file)
		if err != nil {
			return nil, err
		}
		out = f
	case foreground:
		out = os.Stderr
	default:
		if w, err := syslog.New(syslog.LOG_DAEMON|syslog.LOG_INFO, "s3rdmafs"); err == nil {
			out = w
		}
	}
	return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: min})), nil
}
