package gateway

import (
	"context"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// hangupDelay is how long a request lasts before its connection is watched.
// Most are over by then, and need no goroutine for it.
const hangupDelay = 20 * time.Millisecond

// untilHangup derives a context that also ends when the peer of c closes its
// end or is gone. The caller must call stop before anybody reads from c again:
// the watch uses its read deadline. Where c cannot be watched the context is
// just derived.
func untilHangup(ctx context.Context, c net.Conn) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	if t, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS
		c = t.NetConn()
	}
	sc, ok := c.(syscall.Conn)
	if !ok {
		return ctx, cancel
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return ctx, cancel
	}
	done := make(chan struct{})
	timer := time.AfterFunc(hangupDelay, func() {
		defer close(done)
		// Read calls back at once, and then whenever the state of the socket changes.
		_ = raw.Read(func(fd uintptr) bool {
			if hungUp(int(fd)) {
				cancel()
				return true
			}
			return false
		})
	})
	return ctx, func() {
		defer cancel()
		if timer.Stop() {
			return
		}
		_ = c.SetReadDeadline(time.Unix(1, 0))
		<-done
		_ = c.SetReadDeadline(time.Time{})
	}
}

// hungUp looks at the socket without taking from it: bytes of the next request
// may be waiting, or TLS's word of farewell.
func hungUp(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	for {
		_, err := unix.Poll(p, 0)
		if err == unix.EINTR {
			continue
		}
		return err == nil && p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
	}
}
