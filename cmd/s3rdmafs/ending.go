package main

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// endTellTimeout bounds the telling of the end to one who stopped listening.
const endTellTimeout = time.Second

// endHello is said to whoever connects: from then on the verdict will come,
// however soon the mount ends.
const endHello = "waiting\n"

// helloTimeout bounds the wait for endHello.
const helloTimeout = 5 * time.Second

// ending tells whoever unmounts how the mount's process ended, which an exit
// status tells its parent alone. It listens on an abstract unix socket, whose name
// the counters of the mount show, for the mount's own user and root.
type ending struct {
	name     string
	listener *net.UnixListener
	served   sync.WaitGroup

	mu      sync.Mutex
	waiting []net.Conn
	told    *verdict
}

func newEnding() (*ending, error) {
	name := "@s3rdmafs-" + rand.Text()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for unmounts: %w", err)
	}
	e := &ending{name: name, listener: l}
	e.served.Add(1)
	go e.accept()
	return e, nil
}

func (e *ending) accept() {
	defer e.served.Done()
	for {
		conn, err := e.listener.AcceptUnix()
		if err != nil {
			return
		}
		if !sameUserOrRoot(conn) {
			conn.Close()
			continue
		}
		e.mu.Lock()
		switch _, err := conn.Write([]byte(endHello)); {
		case err != nil:
			conn.Close()
		case e.told != nil:
			tell(conn, *e.told)
		default:
			e.waiting = append(e.waiting, conn)
		}
		e.mu.Unlock()
	}
}

// close tells everybody who waits, and ends. err nil means that all is stored.
func (e *ending) close(err error) {
	var v verdict
	if err != nil {
		v.Error = oneLine(err)
	}
	e.mu.Lock()
	e.told = &v
	for _, conn := range e.waiting {
		tell(conn, v)
	}
	e.mu.Unlock()
	e.listener.Close()
	e.served.Wait()
}

func tell(conn net.Conn, v verdict) {
	// Nobody is left to be told that somebody left.
	_ = conn.SetWriteDeadline(time.Now().Add(endTellTimeout))
	_ = json.NewEncoder(conn).Encode(v)
	conn.Close()
}

func sameUserOrRoot(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	ok := false
	err = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		ok = err == nil && (cred.Uid == 0 || int(cred.Uid) == os.Geteuid())
	})
	return err == nil && ok
}

// endWatch waits for the end of a mount.
type endWatch struct {
	conn net.Conn
	in   *bufio.Reader
}

// watchEnd connects to a mount's ending; nil when it cannot be reached, as from
// another network namespace.
func watchEnd(name string) *endWatch {
	if name == "" {
		return nil
	}
	conn, err := net.Dial("unix", name)
	if err != nil {
		return nil
	}
	w := &endWatch{conn: conn, in: bufio.NewReader(conn)}
	if conn.SetReadDeadline(time.Now().Add(helloTimeout)) == nil {
		if line, err := w.in.ReadString('\n'); err == nil && line == endHello {
			return w
		}
	}
	conn.Close()
	return nil
}

func (w *endWatch) close() { w.conn.Close() }

// verdict waits for it until deadline.
func (w *endWatch) verdict(deadline time.Time) (verdict, error) {
	var v verdict
	if err := w.conn.SetReadDeadline(deadline); err != nil {
		return v, err
	}
	line, err := w.in.ReadBytes('\n')
	if err != nil {
		return v, err
	}
	return v, json.Unmarshal(line, &v)
}
