package gateway

import (
	"net"
	"sync"
)

// trackedListener remembers the connections it accepted, so that those still
// open when the time for a graceful end is over can be closed.
type trackedListener struct {
	net.Listener
	mu     sync.Mutex
	conns  map[*trackedConn]struct{}
	closed bool
}

func newTrackedListener(ln net.Listener) *trackedListener {
	return &trackedListener{Listener: ln, conns: make(map[*trackedConn]struct{})}
}

// trackedConn embeds the TCP connection itself: the server's use of sendfile
// depends on its methods.
type trackedConn struct {
	*net.TCPConn
	ln *trackedListener
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
