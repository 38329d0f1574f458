package fs

import (
	"errors"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stop keeps the gateway from answering until the returned function is called.
func (w *world) stop() (resume func()) {
	w.t.Helper()
	pid := w.env.PID()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		w.t.Fatal(err)
	}
	return func() { syscall.Kill(pid, syscall.SIGCONT) }
}

// Semantics "Errors and time": an interrupted call returns EINTR within a
// second, and does not cancel the upload. Signals that are not to end the
// program interrupt nothing, as on a disk.
func TestInterrupt(t *testing.T) {
	w := newWorld(t)
	m := w.mount()
	caught := make(chan os.Signal, 4)
	signal.Notify(caught, syscall.SIGHUP, syscall.SIGALRM)
	defer signal.Stop(caught)
	for i, tt := range []struct {
		sig  syscall.Signal
		want error
	}{{syscall.SIGHUP, syscall.EINTR}, {syscall.SIGURG, nil}, {syscall.SIGALRM, nil}} {
		t.Run(tt.sig.String(), func(t *testing.T) {
			name := string(rune('a' + i))
			f, err := os.Create(m.path(name))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteString("data"); err != nil {
				t.Fatal(err)
			}
			resume := w.stop()
			defer resume()
			tid := make(chan int)
			result := make(chan error, 1)
			go func() {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				tid <- unix.Gettid()
				result <- unix.Fsync(int(f.Fd()))
			}()
			thread := <-tid
			uploading := func() bool {
				n := m.fs.find("/" + name)
				n.mu.Lock()
				defer n.mu.Unlock()
				return n.uploading != nil
			}
			eventually(t, "the upload is under way", uploading)
			if err := unix.Tgkill(os.Getpid(), thread, unix.Signal(tt.sig)); err != nil {
				t.Fatal(err)
			}
			if tt.want == nil {
				// The signal must not end the call, however long it lasts.
				select {
				case err := <-result:
					t.Fatalf("the call ended: %v", err)
				case <-time.After(4 * interruptPoll):
				}
				resume()
				if err := <-result; err != nil {
					t.Errorf("fsync: %v", err)
				}
			} else {
				if err := <-result; !errors.Is(err, tt.want) {
					t.Errorf("fsync: %v, want %v", err, tt.want)
				}
				if !uploading() {
					t.Error("the upload was cancelled")
				}
				resume()
			}
			eventually(t, "it is stored", func() bool { return m.Stats().DirtyFiles == 0 })
			w.wantObject(name, "data")
		})
	}
}

func TestEndingSignals(t *testing.T) {
	set := func(list ...syscall.Signal) (mask uint64) {
		for _, sig := range list {
			mask |= 1 << (sig - 1)
		}
		return mask
	}
	for _, tt := range []struct {
		name string
		sig  signals
		want bool
	}{
		{"none", signals{}, false},
		{"kill", signals{pending: set(syscall.SIGKILL)}, true},
		{"interrupt", signals{pending: set(syscall.SIGINT)}, true},
		{"interrupt, handled", signals{pending: set(syscall.SIGINT), caught: set(syscall.SIGINT)}, true},
		{"deadly alarm", signals{pending: set(syscall.SIGALRM)}, true},
		{"alarm, handled", signals{pending: set(syscall.SIGALRM), caught: set(syscall.SIGALRM)}, false},
		{"profiler", signals{pending: set(syscall.SIGPROF), caught: set(syscall.SIGPROF, syscall.SIGINT)}, false},
		{"preemption", signals{pending: set(syscall.SIGURG)}, false},
		{"a child, and an interrupt", signals{pending: set(syscall.SIGCHLD, syscall.SIGINT)}, true},
		{"interrupt, blocked", signals{pending: set(syscall.SIGINT), blocked: set(syscall.SIGINT)}, false},
		{"kill, interrupt blocked", signals{pending: set(syscall.SIGKILL, syscall.SIGINT), blocked: set(syscall.SIGINT)}, true},
		{"stop", signals{pending: set(syscall.SIGTSTP)}, false},
	} {
		if got := tt.sig.ending(); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// find is the file node of a path.
func (s *filesystem) find(path string) *file {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.root.children[path[1:]].(*file)
}
