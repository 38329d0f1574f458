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
// operation's deadline, and within a second after a signal that the calling
// program would notice. done must be called.
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
// signal pending that it would notice, false when ctx ends first. The kernel
// interrupts for every signal, also for SIGURG, by which the Go runtime
// preempts threads: a close(2) that fails for one of those would be a bug that
// programs do not expect.
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
		pending, err := pendingSignals(caller.Pid)
		if err != nil || pending&^harmlessSignals != 0 {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
}

// harmlessSignals do nothing to a program that did not ask for them.
const harmlessSignals = 1<<(syscall.SIGURG-1) | 1<<(syscall.SIGCHLD-1) | 1<<(syscall.SIGWINCH-1) | 1<<(syscall.SIGCONT-1)

// pendingSignals is the set of signals that wait for the thread tid.
func pendingSignals(tid uint32) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return 0, err
	}
	var set uint64
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		if name != "SigPnd" && name != "ShdPnd" {
			continue
		}
		v, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		if err != nil {
			return 0, err
		}
		set |= v
	}
	return set, nil
}
