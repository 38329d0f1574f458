package fs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// interruptPoll is how often a request that was interrupted looks whether the
// signal is one to end for.
const interruptPoll = 200 * time.Millisecond

// request is the context of work one caller waits for: it ends at the
// operation's deadline, and within a second after a signal that is to end the
// calling program. done must be called.
func (s *filesystem) request(ctx context.Context) (_ context.Context, done func()) {
	return s.bounded(ctx, s.o.OpTimeout)
}

// unbounded is request without a deadline of its own, for work that has one
// for each of its steps.
func (s *filesystem) unbounded(ctx context.Context) (_ context.Context, done func()) {
	return s.bounded(ctx, 0)
}

func (s *filesystem) bounded(parent context.Context, timeout time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(s.life)
	stopTimer := context.CancelFunc(func() {})
	if timeout > 0 {
		ctx, stopTimer = context.WithTimeout(ctx, timeout)
	}
	stop := context.AfterFunc(parent, func() {
		if waitSignal(ctx, parent) {
			cancel(errInterrupted)
		}
	})
	return ctx, func() {
		stop()
		stopTimer()
		cancel(nil)
	}
}

// causeOf gives the reason why ctx ended in place of the error that came of it.
func causeOf(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errInterrupted) {
		return errInterrupted
	}
	return err
}

// waitSignal returns true once the caller of an interrupted request has a
// signal pending that is to end the program, false when ctx ends first. The
// kernel interrupts for every signal: for SIGURG, by which the Go runtime
// preempts threads, for timers and profilers, for ^Z. On a disk none of them
// makes a call fail, and programs do not expect it.
func waitSignal(ctx, parent context.Context) bool {
	caller, ok := fuse.FromContext(parent)
	if !ok || caller.Pid == 0 {
		return true
	}
	tick := time.NewTicker(interruptPoll)
	defer tick.Stop()
	for {
		// An error means that the thread is gone or not to be seen. An empty
		// set means that another thread took the signal.
		sig, err := signalsOf(caller.Pid)
		if err != nil || sig.ending() {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
}

// signals are those that wait for a thread, and those its program handles.
type signals struct{ pending, blocked, caught uint64 }

// ending reports whether one of the pending signals kills the program or, when
// it handles that, asks it to end.
func (s signals) ending() bool {
	const (
		requests = 1<<(syscall.SIGINT-1) | 1<<(syscall.SIGTERM-1) | 1<<(syscall.SIGHUP-1) | 1<<(syscall.SIGQUIT-1)
		// harmless signals do nothing, or stop the program, when not handled.
		harmless = 1<<(syscall.SIGURG-1) | 1<<(syscall.SIGCHLD-1) | 1<<(syscall.SIGWINCH-1) | 1<<(syscall.SIGCONT-1) |
			1<<(syscall.SIGSTOP-1) | 1<<(syscall.SIGTSTP-1) | 1<<(syscall.SIGTTIN-1) | 1<<(syscall.SIGTTOU-1)
	)
	pending := s.pending &^ s.blocked // programs take blocked ones when they choose to
	return pending&s.caught&requests != 0 || pending&^s.caught&^harmless != 0
}

// signalsOf are the signals of the thread tid.
func signalsOf(tid uint32) (s signals, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return s, err
	}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		var set *uint64
		switch name {
		case "SigPnd", "ShdPnd":
			set = &s.pending
		case "SigBlk":
			set = &s.blocked
		case "SigCgt":
			set = &s.caught
		default:
			continue
		}
		v, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		if err != nil {
			return s, err
		}
		*set |= v
	}
	return s, nil
}
