package shm

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"s3rdmafs/verbs"
)

const (
	// stallTimeout is how long a peer may leave its socket full before frames to
	// it count as lost.
	stallTimeout = time.Second
	helloTimeout = 5 * time.Second
)

// socketPrefix begins the names of all sockets of software devices.
const socketPrefix = "@s3rdmafs-shm-"

// socketAddr is where the device with that GID listens. Abstract sockets need
// no directory and are gone with the process.
func socketAddr(uid int, gid verbs.GID) *net.UnixAddr {
	return &net.UnixAddr{Net: "unixpacket", Name: fmt.Sprintf("%s%d-%s", socketPrefix, uid, hex.EncodeToString(gid[:]))}
}

// sameUser fails unless the process at the other end has our user ID.
func sameUser(c *net.UnixConn) error {
	rc, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var cerr error
	if err := rc.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if cerr != nil {
		return cerr
	}
	if int64(cred.Uid) != int64(os.Geteuid()) {
		return fmt.Errorf("peer is user %d", cred.Uid)
	}
	return nil
}

// outConn carries requests to one peer device, and its answers back.
type outConn struct {
	dev  *Device
	peer verbs.GID
	sock *net.UnixConn

	mu   sync.Mutex
	buf  []byte
	sent map[uint64]struct{} // memories whose descriptor the peer has got
}

// connTo returns the connection to the device with that GID.
func (d *Device) connTo(gid verbs.GID) (*outConn, error) {
	d.mu.Lock()
	c, closed := d.out[gid], d.closed
	d.mu.Unlock()
	if c != nil {
		return c, nil
	}
	if closed {
		return nil, verbs.ErrClosed
	}
	// Connecting never waits: the peer's backlog has room, or the call fails.
	sock, err := net.DialUnix("unixpacket", nil, socketAddr(os.Geteuid(), gid))
	if err != nil {
		return nil, err
	}
	c = &outConn{dev: d, peer: gid, sock: sock, sent: map[uint64]struct{}{}}
	if err := errors.Join(sameUser(sock), c.hello()); err != nil {
		sock.Close()
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if first := d.out[gid]; first != nil || d.closed {
		sock.Close()
		if first == nil {
			return nil, verbs.ErrClosed
		}
		return first, nil
	}
	d.out[gid] = c
	d.spawn(c.read)
	return c, nil
}

func (c *outConn) hello() error {
	file, err := reopenReadOnly(c.dev.epochs.mem.File())
	if err != nil {
		return err
	}
	defer file.Close()
	c.sock.SetWriteDeadline(time.Now().Add(stallTimeout))
	_, _, err = c.sock.WriteMsgUnix(helloFrame{GID: c.dev.gid}.append(nil), unix.UnixRights(int(file.Fd())), nil)
	return err
}

// write sends a request; mems are the memories of its SGEs. Descriptors go
// along that the peer has not got.
func (c *outConn) write(f *writeFrame, mems []*exported) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var fds []int
	var fresh []uint64
	sges := f.SGEs
	for i, m := range mems {
		if m.closed.Load() {
			return verbs.ErrClosed
		}
		if _, ok := c.sent[m.id]; ok {
			continue
		}
		if len(fresh) == 0 {
			// The request may be on its way to be sent once more; its SGEs stay.
			sges = append([]frameSGE(nil), f.SGEs...)
		}
		fds = append(fds, int(m.file.Fd()))
		fresh = append(fresh, m.id)
		sges[i].FD = uint32(len(fds))
		c.sent[m.id] = struct{}{}
	}
	framed := *f
	framed.SGEs = sges
	c.buf = framed.append(c.buf[:0])
	c.sock.SetWriteDeadline(time.Now().Add(stallTimeout))
	var err error
	if len(fds) == 0 {
		_, err = c.sock.Write(c.buf)
	} else {
		_, _, err = c.sock.WriteMsgUnix(c.buf, unix.UnixRights(fds...), nil)
	}
	if err != nil {
		for _, id := range fresh {
			delete(c.sent, id)
		}
	}
	return err
}

// forget tells the peer to let go of a memory.
func (c *outConn) forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.sent[id]; !ok {
		return
	}
	delete(c.sent, id)
	c.buf = forgetFrame{Mem: id}.append(c.buf[:0])
	c.sock.SetWriteDeadline(time.Now().Add(stallTimeout))
	if _, err := c.sock.Write(c.buf); err != nil {
		// A peer that missed it would keep the memory for as long as the
		// connection lives.
		c.sock.Close()
	}
}

// busy reports whether frames lie unread at either end. Then they are not lost:
// a process that does not get the CPU is not a bad wire.
func (c *outConn) busy() bool {
	rc, err := c.sock.SyscallConn()
	if err != nil {
		return false
	}
	unread := 0
	err = rc.Control(func(fd uintptr) {
		for _, queue := range []uint{unix.SIOCOUTQ, unix.SIOCINQ} {
			if n, err := unix.IoctlGetInt(int(fd), queue); err == nil {
				unread += n
			}
		}
	})
	return err == nil && unread > 0
}

// read hands the answers to the QPs until the connection ends.
func (c *outConn) read() {
	d := c.dev
	buf := make([]byte, replySize+1)
	for {
		n, err := c.sock.Read(buf)
		if err == nil && n == 0 {
			err = io.EOF
		}
		var f replyFrame
		if err == nil {
			f, err = parseReply(buf[:n])
		}
		if err != nil {
			d.mu.Lock()
			if d.out[c.peer] == c {
				delete(d.out, c.peer)
			}
			d.mu.Unlock()
			c.sock.Close()
			if errors.Is(err, errFrame) {
				d.log.Warn("shm: bad answer", "peer", c.peer, "err", err)
			}
			return
		}
		if f.Kind == replyNeedMem {
			c.mu.Lock()
			delete(c.sent, f.Code)
			c.mu.Unlock()
		}
		if q := d.qpByNum(f.QPN); q != nil {
			q.answer(c.peer, f)
		}
	}
}

// accept takes connections of peers until the device is closed.
func (d *Device) accept() {
	for {
		sock, err := d.ln.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of descriptors, most likely: a little later there may be some.
			d.log.Warn("shm: accept", "err", err)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if err := sameUser(sock); err != nil {
			d.log.Warn("shm: peer refused", "err", err)
			sock.Close()
			continue
		}
		c := &inConn{dev: d, sock: sock, mems: map[uint64]*peerMem{}}
		c.refs.Store(1)
		d.mu.Lock()
		if d.closed || len(d.in) == maxPeers {
			d.mu.Unlock()
			sock.Close()
			d.log.Warn("shm: peer refused", "peers", maxPeers)
			continue
		}
		d.in[c] = struct{}{}
		d.spawn(c.serve)
		d.mu.Unlock()
	}
}

// peerMem is memory of a peer, mapped for reading. Copying out of a mapping was
// measured at 1.3 times (256 KiB) to 2.5 times (1 MiB) the speed of pread from the
// memfd; only the first touch of each page costs as much.
type peerMem struct {
	buf  []byte
	used uint64 // for least recently used; of the reading goroutine
	refs atomic.Int32
}

func (m *peerMem) release() {
	if m.refs.Add(-1) == 0 {
		unix.Munmap(m.buf)
	}
}

// inConn carries requests of one peer device, and the answers back.
type inConn struct {
	dev    *Device
	sock   *net.UnixConn
	gid    verbs.GID  // set by the hello
	epochs *epochPage // set by the hello
	refs   atomic.Int32

	// These belong to the goroutine that reads.
	mems  map[uint64]*peerMem
	tick  uint64
	frame [maxFrameSize + 1]byte
	oob   [64 + 4*maxFrameFDs]byte

	mu  sync.Mutex
	buf []byte
}

func (c *inConn) hold() { c.refs.Add(1) }

func (c *inConn) release() {
	if c.refs.Add(-1) == 0 && c.epochs != nil {
		c.epochs.close()
	}
}

// serve reads requests until the connection ends or breaks the protocol.
func (c *inConn) serve() {
	d := c.dev
	err := c.readHello()
	for err == nil {
		err = c.readFrame()
	}
	c.sock.Close()
	d.mu.Lock()
	delete(d.in, c)
	d.mu.Unlock()
	for _, m := range c.mems {
		m.release()
	}
	c.release()
	if errors.Is(err, errFrame) {
		d.log.Warn("shm: connection closed", "peer", c.gid, "err", err)
	}
}

// receive reads one frame and the descriptors that came with it.
func (c *inConn) receive(frame, oob []byte) (int, []int, error) {
	n, oobn, flags, _, err := c.sock.ReadMsgUnix(frame, oob)
	if err != nil {
		return 0, nil, err
	}
	if n == 0 {
		return 0, nil, io.EOF
	}
	var fds []int
	if oobn > 0 {
		if fds, err = parseRights(oob[:oobn]); err != nil {
			return 0, fds, err
		}
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return 0, fds, fmt.Errorf("%w: too long", errFrame)
	}
	return n, fds, nil
}

func parseRights(oob []byte) ([]int, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errFrame, err)
	}
	var all []int
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return all, fmt.Errorf("%w: %w", errFrame, err)
		}
		all = append(all, fds...)
	}
	return all, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

func (c *inConn) readHello() error {
	c.sock.SetReadDeadline(time.Now().Add(helloTimeout))
	n, fds, err := c.receive(c.frame[:], c.oob[:])
	defer closeAll(fds)
	if err != nil {
		return err
	}
	h, err := parseHello(c.frame[:n])
	if err != nil {
		return err
	}
	if len(fds) != 1 {
		return fmt.Errorf("%w: hello with %d descriptors", errFrame, len(fds))
	}
	if c.epochs, err = importEpochPage(fds[0]); err != nil {
		return err
	}
	c.gid = h.GID
	c.buf = make([]byte, 0, replySize)
	return c.sock.SetReadDeadline(time.Time{})
}

func (c *inConn) readFrame() error {
	n, fds, err := c.receive(c.frame[:], c.oob[:])
	defer closeAll(fds)
	if err != nil {
		return err
	}
	switch c.frame[0] {
	case frameWrite:
		f, err := parseWrite(c.frame[:n], len(fds))
		if err != nil {
			return err
		}
		return c.handleWrite(f, fds)
	case frameForget:
		f, err := parseForget(c.frame[:n])
		if err != nil || len(fds) > 0 {
			return errors.Join(errFrame, err)
		}
		if m := c.mems[f.Mem]; m != nil {
			delete(c.mems, f.Mem)
			m.release()
		}
		return nil
	}
	return fmt.Errorf("%w: type %d", errFrame, c.frame[0])
}

func (c *inConn) handleWrite(f *writeFrame, fds []int) error {
	for _, s := range f.SGEs {
		if s.FD == 0 {
			continue
		}
		if err := c.importMem(s.Mem, fds[s.FD-1]); err != nil {
			return err
		}
	}
	mems := make([]*peerMem, len(f.SGEs))
	c.tick++
	for i, s := range f.SGEs {
		m := c.mems[s.Mem]
		if m == nil {
			c.reply(f.reply(replyNeedMem, s.Mem))
			return nil
		}
		if s.Off > uint64(len(m.buf)) || uint64(s.Length) > uint64(len(m.buf))-s.Off {
			return fmt.Errorf("%w: SGE outside of its memory", errFrame)
		}
		m.used = c.tick
		mems[i] = m
	}
	c.evict()
	c.deliver(f, mems)
	if after, ok := c.dev.faults.late(); ok {
		c.deliverLate(after, f, mems)
	}
	return nil
}

func (c *inConn) deliver(f *writeFrame, mems []*peerMem) {
	q := c.dev.qpByNum(f.DstQPN)
	if q == nil || c.dev.down.Load() {
		return
	}
	for _, m := range mems {
		m.refs.Add(1)
	}
	q.receive(c, f, mems)
}

// deliverLate lets a request arrive a second time, like a packet that took
// another route.
func (c *inConn) deliverLate(after time.Duration, f *writeFrame, mems []*peerMem) {
	for _, m := range mems {
		m.refs.Add(1)
	}
	c.hold()
	c.dev.spawn(func() {
		time.Sleep(after)
		c.deliver(f, mems)
		for _, m := range mems {
			m.release()
		}
		c.release()
	})
}

func (c *inConn) importMem(id uint64, fd int) error {
	buf, err := mapSealed(fd)
	if err != nil {
		return err
	}
	if old := c.mems[id]; old != nil {
		old.release()
	}
	m := &peerMem{buf: buf}
	m.refs.Store(1)
	c.mems[id] = m
	return nil
}

// evict gives up the mappings that were not used for longest. Those of the
// present request stay, as it has fewer SGEs than the limit.
func (c *inConn) evict() {
	for len(c.mems) > maxPeerMems {
		var oldest uint64
		var victim *peerMem
		for id, m := range c.mems {
			if victim == nil || m.used < victim.used {
				oldest, victim = id, m
			}
		}
		delete(c.mems, oldest)
		victim.release()
	}
}

// reply answers a request. An answer that cannot be sent is lost.
func (c *inConn) reply(f replyFrame) {
	if c.dev.down.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.buf = f.append(c.buf[:0])
	c.sock.SetWriteDeadline(time.Now().Add(stallTimeout))
	if _, err := c.sock.Write(c.buf); err != nil {
		c.dev.log.Debug("shm: answer lost", "peer", c.gid, "err", err)
	}
}
