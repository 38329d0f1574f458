package fs

import (
	"errors"
	"os"
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
// second, and does not cancel the upload. SIGURG, by which the Go runtime
// preempts, interrupts nothing.
func TestInterrupt(t *testing.T) {
	w := newWorld(t)
	m := w.mount()
	for i, tt := range []struct {
		sig  syscall.Signal
		want error
	}{{syscall.SIGUSR1, syscall.EINTR}, {syscall.SIGURG, nil}} {
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

// find is the file node of a path.
func (s *filesystem) find(path string) *file {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.root.children[path[1:]].(*file)
}
