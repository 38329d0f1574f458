package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"log/syslog"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// logPlace says where a mount logs: a file, "syslog", "stderr" or "nowhere".
type logPlace string

func openLog(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, fmt.Errorf("log file: %w", err)
	}
	return f, nil
}

// newLogger logs to the file, else in the foreground to stderr, else to syslog,
// and where there is none to a file of this program's own.
func newLogger(file, level string, foreground bool) (*slog.Logger, *notes, logPlace, error) {
	var least slog.Level
	if err := least.UnmarshalText([]byte(level)); err != nil {
		return nil, nil, "", fmt.Errorf("log level %q: want debug, info, warn or error", level)
	}
	out, place, err := logWriter(file, foreground)
	if err != nil {
		return nil, nil, "", err
	}
	n := &notes{next: slog.NewTextHandler(out, &slog.HandlerOptions{Level: least}), list: &noteList{}}
	return slog.New(n), n, place, nil
}

func logWriter(file string, foreground bool) (io.Writer, logPlace, error) {
	if file == "" && foreground {
		return os.Stderr, "stderr", nil
	}
	if file == "" {
		if w, err := syslog.New(syslog.LOG_DAEMON|syslog.LOG_INFO, "s3rdmafs"); err == nil {
			return w, "syslog", nil
		}
		if file = defaultLogFile(); file == "" {
			return io.Discard, "nowhere", nil
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
			return io.Discard, "nowhere", nil
		}
	}
	f, err := openLog(file)
	if err != nil {
		return nil, "", err
	}
	return f, logPlace(file), nil
}

// defaultLogFile is where mounts log on machines without syslog.
func defaultLogFile() string {
	if os.Geteuid() == 0 {
		return "/var/log/s3rdmafs.log"
	}
	state := os.Getenv("XDG_STATE_HOME")
	if state == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return ""
		}
		state = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(state, "s3rdmafs", "s3rdmafs.log")
}

// notes passes every record on, and keeps warnings of the start, so that the
// user at the terminal is told of them as well.
type notes struct {
	next slog.Handler
	list *noteList
}

type noteList struct {
	mu    sync.Mutex
	taken bool
	text  []string
}

// take returns the warnings so far; later ones are only logged.
func (n *notes) take() []string {
	n.list.mu.Lock()
	defer n.list.mu.Unlock()
	n.list.taken = true
	return n.list.text
}

func (n *notes) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn || n.next.Enabled(ctx, l)
}

func (n *notes) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		n.list.add(r)
	}
	if !n.next.Enabled(ctx, r.Level) {
		return nil
	}
	return n.next.Handle(ctx, r)
}

func (l *noteList) add(r slog.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.taken {
		return
	}
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		text += fmt.Sprintf(", %s: %v", a.Key, a.Value)
		return true
	})
	l.text = append(l.text, strings.ReplaceAll(text, "\n", "; "))
}

func (n *notes) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &notes{next: n.next.WithAttrs(attrs), list: n.list}
}

func (n *notes) WithGroup(name string) slog.Handler {
	return &notes{next: n.next.WithGroup(name), list: n.list}
}
