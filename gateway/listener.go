package gateway

import (
	"net"
	"sync"
	"sync/atomic"
)

// trackedListener remembers the connections it accepted, so that those still
// open when the time for a graceful end is over can be closed.
type trackedListener struct {
	net.Listener
	close  func() error // once: the gateway and the server both close it
	mu     sync.Mutex
	conns  map[*trackedConn]struct{}
	closed bool
}

func newTrackedListener(ln net.Listener) *trackedListener {
	return &trackedListener{
		Listener: ln,
		close:    sync.OnceValue(ln.Close),
		conns:    make(map[*trackedConn]struct{}),
	}
}

func (l *trackedListener) Close() error { return l.close() }

// trackedConn embeds the TCP connection itself: the server's use of sendfile
// depends on its methods.
type trackedConn struct {
	*net.TCPConn
	ln   *trackedListener
	used atomic.Bool // something came in
}

func (c *trackedConn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	if n > 0 {
		c.used.Store(true)
	}
	return n, err
}

func (l *trackedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c, nil
	}
	tc := &trackedConn{TCPConn: tcp, ln: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		tcp.Close()
		return nil, net.ErrClosed
	}
	l.conns[tc] = struct{}{}
	return tc, nil
}

func (c *trackedConn) Close() error {
	c.ln.mu.Lock()
	delete(c.ln.conns, c)
	c.ln.mu.Unlock()
	return c.TCPConn.Close()
}

// closeConns closes every connection that is open, and those still to come.
func (l *trackedListener) closeConns() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for c := range l.conns {
		c.TCPConn.Close()
	}
	clear(l.conns)
}

// closeUnused closes the connections on which no request ever came. Clients
// keep such connections in reserve, and the server takes them for busy.
func (l *trackedListener) closeUnused() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		if !c.used.Load() {
			c.TCPConn.Close()
			delete(l.conns, c)
		}
	}
}
