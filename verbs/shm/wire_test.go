package shm

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"s3rdmafs/verbs"
)

// rogue is a connection to a device that follows no rules.
type rogue struct {
	t    *testing.T
	sock *net.UnixConn
}

func dialRogue(t *testing.T, d *Device) *rogue {
	t.Helper()
	sock, err := net.DialUnix("unixpacket", nil, socketAddr(os.Geteuid(), d.gid))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sock.Close() })
	return &rogue{t, sock}
}

func (r *rogue) send(b []byte, fds ...int) {
	r.t.Helper()
	if _, _, err := r.sock.WriteMsgUnix(b, unix.UnixRights(fds...), nil); err != nil && !errors.Is(err, syscall.EPIPE) {
		r.t.Fatal(err)
	}
}

// hello introduces the rogue as gid, correctly.
func (r *rogue) hello(gid verbs.GID) *epochPage {
	r.t.Helper()
	page, err := newEpochPage()
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { page.close() })
	r.send(helloFrame{GID: gid}.append(nil), readOnly(r.t, page.mem))
	return page
}

func readOnly(t *testing.T, m *verbs.Memory) int {
	t.Helper()
	f, err := reopenReadOnly(m.File())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return int(f.Fd())
}

// wantClosed waits until the device has closed the connection.
func (r *rogue) wantClosed() {
	r.t.Helper()
	r.sock.SetReadDeadline(time.Now().Add(20 * time.Second))
	for {
		n, err := r.sock.Read(make([]byte, 64))
		if n == 0 || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			return
		}
		if err != nil {
			r.t.Fatalf("connection not closed: %v", err)
		}
	}
}

func memory(t *testing.T, size int) *verbs.Memory {
	t.Helper()
	m, err := verbs.NewMemory("rogue", size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mustClose(t, m) })
	return m
}

// TestRogueHello: a connection that starts badly is closed.
func TestRogueHello(t *testing.T) {
	n := newNode(t, 4096, 64, nil)
	good := helloFrame{GID: n.dev.gid}.append(nil)
	for name, c := range map[string]struct {
		frame []byte
		fds   func(*testing.T) []int
	}{
		"garbage":       {bytes.Repeat([]byte{0xff}, 24), nil},
		"too long":      {append(good, 0), nil},
		"far too long":  {make([]byte, 4096), nil},
		"no descriptor": {good, nil},
		"two descriptors": {good, func(t *testing.T) []int {
			m := memory(t, epochPageSize)
			return []int{readOnly(t, m), readOnly(t, m)}
		}},
		"small page":    {good, func(t *testing.T) []int { return []int{readOnly(t, memory(t, 4096))} }},
		"writable page": {good, func(t *testing.T) []int { return []int{int(memory(t, epochPageSize).File().Fd())} }},
		"a file": {good, func(t *testing.T) []int {
			f, err := os.Open("/dev/null")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.Close() })
			return []int{int(f.Fd())}
		}},
		"unsealed page": {good, func(t *testing.T) []int {
			fd, err := unix.MemfdCreate("unsealed", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
			if err != nil {
				t.Fatal(err)
			}
			f := os.NewFile(uintptr(fd), "unsealed")
			t.Cleanup(func() { f.Close() })
			if err := f.Truncate(epochPageSize); err != nil {
				t.Fatal(err)
			}
			ro, err := reopenReadOnly(f)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { ro.Close() })
			return []int{int(ro.Fd())}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := dialRogue(t, n.dev)
			var fds []int
			if c.fds != nil {
				fds = c.fds(t)
			}
			r.send(c.frame, fds...)
			r.wantClosed()
		})
	}
	wantWorking(t, n)
}

// TestRogueFrames: so is one that goes on badly.
func TestRogueFrames(t *testing.T) {
	n := newNode(t, 4096, 64, nil)
	q := n.qp(t)
	modify(t, q, initAttr())
	rogueGID := n.dev.gid
	rogueGID[15] ^= 1
	ln, err := net.ListenUnix("unixpacket", socketAddr(os.Geteuid(), rogueGID))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	attr := rtrAttr(n, 77, 5)
	attr.AH.DGID = rogueGID
	modify(t, q, attr)
	dst := n.reg(t, remote)
	write := writeFrame{MTU: verbs.MTU4096, SrcQPN: 77, DstQPN: q.Num(), PSN: 5, RemoteAddr: dst.Addr(), RKey: dst.RKey()}
	for name, send := range map[string]func(*rogue, writeFrame){
		"unknown type": func(r *rogue, _ writeFrame) { r.send([]byte{99, 0, 0, 0}) },
		"second hello": func(r *rogue, _ writeFrame) { r.send(helloFrame{}.append(nil)) },
		"an answer":    func(r *rogue, _ writeFrame) { r.send(replyFrame{Kind: replyACK}.append(nil)) },
		"SGE beyond the memory": func(r *rogue, w writeFrame) {
			w.SGEs = []frameSGE{{Mem: 1, Off: 1, Length: 4096, FD: 1}}
			r.send(w.append(nil), readOnly(r.t, memory(r.t, 4096)))
		},
		"SGE offset overflows": func(r *rogue, w writeFrame) {
			w.SGEs = []frameSGE{{Mem: 1, Off: ^uint64(0), Length: 2, FD: 1}}
			r.send(w.append(nil), readOnly(r.t, memory(r.t, 4096)))
		},
		"writable memory": func(r *rogue, w writeFrame) {
			w.SGEs = []frameSGE{{Mem: 1, Length: 4096, FD: 1}}
			r.send(w.append(nil), int(memory(r.t, 4096).File().Fd()))
		},
		"descriptor with an empty write": func(r *rogue, w writeFrame) {
			r.send(w.append(nil), readOnly(r.t, memory(r.t, 4096)))
		},
		"descriptor with a forget": func(r *rogue, _ writeFrame) {
			r.send(forgetFrame{Mem: 1}.append(nil), readOnly(r.t, memory(r.t, 4096)))
		},
		"more descriptors than a frame has": func(r *rogue, w writeFrame) {
			fd := readOnly(r.t, memory(r.t, 4096))
			r.send(w.append(nil), append(bytesOf(fd, maxFrameFDs), bytesOf(fd, 20)...)...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := dialRogue(t, n.dev)
			r.hello(rogueGID)
			send(r, write)
			r.wantClosed()
		})
	}

	// The same rogue gets through when it behaves, so it was not refused for
	// another reason.
	r := dialRogue(t, n.dev)
	r.hello(rogueGID)
	src := memory(t, 4096)
	copy(src.Bytes(), "behaves")
	write.SGEs = []frameSGE{{Mem: 1, Length: 4096, FD: 1}}
	r.send(write.append(nil), readOnly(t, src))
	buf := make([]byte, 64)
	r.sock.SetReadDeadline(time.Now().Add(20 * time.Second))
	got, err := r.sock.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	if a, err := parseReply(buf[:got]); err != nil || a.Kind != replyACK || !bytes.HasPrefix(dst.Bytes(), []byte("behaves")) {
		t.Errorf("answer %+v, %v; data %q", a, err, dst.Bytes()[:7])
	}
	// An unknown memory is asked for.
	write.PSN++
	write.SGEs = []frameSGE{{Mem: 2, Length: 4096}}
	r.send(write.append(nil))
	if got, err = r.sock.Read(buf); err != nil {
		t.Fatal(err)
	}
	if a, err := parseReply(buf[:got]); err != nil || a.Kind != replyNeedMem || a.Code != 2 {
		t.Errorf("answer %+v, %v", a, err)
	}
}

func bytesOf(fd, n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = fd
	}
	return all
}

// wantWorking checks that the device still serves others.
func wantWorking(t *testing.T, n *node) {
	t.Helper()
	peer := newNode(t, 4096, 64, nil)
	qa, qb := peer.qp(t), n.qp(t)
	connect(t, peer, n, qa, qb, 10, 20)
	src, dst := peer.reg(t, 0), n.reg(t, remote)
	postRecv(t, qb, 1)
	post(t, qa, src, dst, 4096, 2)
	if wc := n.next(t); wc.Status != verbs.WCSuccess {
		t.Error(wc.Status)
	}
}

// TestPeerLimit: no more than maxPeers connections are kept.
func TestPeerLimit(t *testing.T) {
	n := newNode(t, 4096, 64, nil)
	for range maxPeers {
		dialRogue(t, n.dev)
	}
	eventually(t, "all connected", func() bool {
		n.dev.mu.Lock()
		defer n.dev.mu.Unlock()
		return len(n.dev.in) == maxPeers
	})
	dialRogue(t, n.dev).wantClosed()
}

// TestOtherUser: a process of another user gets no connection.
func TestOtherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("becoming another user takes root")
	}
	n := newNode(t, 4096, 64, nil)
	result := make(chan error, 1)
	go func() {
		// The credentials of this thread only; it ends with the goroutine.
		runtime.LockOSThread()
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); e != 0 {
			result <- e
			return
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			result <- err
			return
		}
		defer unix.Close(fd)
		name := fmt.Sprintf("@s3rdmafs-shm-0-%s", hex.EncodeToString(n.dev.gid[:]))
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: name}); err != nil {
			result <- err
			return
		}
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		for {
			if _, err := unix.Poll(poll, 20000); err != unix.EINTR {
				break
			}
		}
		if got, err := unix.Read(fd, make([]byte, 8)); got > 0 || err != nil && err != unix.ECONNRESET {
			result <- fmt.Errorf("read %d bytes, %w", got, err)
			return
		}
		result <- nil
	}()
	if err := <-result; err != nil {
		t.Errorf("the stranger was not turned away: %v", err)
	}
	n.dev.mu.Lock()
	defer n.dev.mu.Unlock()
	if len(n.dev.in) != 0 {
		t.Error("the stranger is a peer")
	}
}

func mapped(t *testing.T, name string) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(maps), "memfd:"+name)
}

// TestMemoryIsLetGo: a peer does not keep memory alive that its owner freed.
func TestMemoryIsLetGo(t *testing.T) {
	a, b := newNode(t, 4096, 64, nil), newNode(t, 4096, 64, nil)
	qa, qb := a.qp(t), b.qp(t)
	connect(t, a, b, qa, qb, 10, 20)
	dst := b.reg(t, remote)
	mem, err := verbs.NewMemory("letgo", 4096)
	if err != nil {
		t.Fatal(err)
	}
	src, err := a.pd.RegMR(mem, 0, 4096, 0)
	if err != nil {
		t.Fatal(err)
	}
	postRecv(t, qb, 1)
	post(t, qa, src, dst, 4096, 2)
	if wc := a.next(t); wc.Status != verbs.WCSuccess {
		t.Fatal(wc.Status)
	}
	if n := mapped(t, "letgo"); n != 2 {
		t.Fatalf("%d mappings, want the owner's and the peer's", n)
	}
	mustClose(t, src, mem)
	eventually(t, "no mapping left", func() bool { return mapped(t, "letgo") == 0 })
}

// TestManyMemories uses more memories than a peer keeps mapped, twice.
func TestManyMemories(t *testing.T) {
	const n = maxPeerMems + 20
	a, b := newNode(t, 4096, 64, nil), newNode(t, 4096, 64, nil)
	qa, qb := a.qp(t), b.qp(t)
	connect(t, a, b, qa, qb, 10, 20)
	dst := b.reg(t, remote)
	var mrs []verbs.MR
	for i := range n {
		mem, err := verbs.NewMemory("many", 4096)
		if err != nil {
			t.Fatal(err)
		}
		mem.Bytes()[0] = byte(i)
		m, err := a.pd.RegMR(mem, 0, 4096, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { mustClose(t, m, mem) })
		mrs = append(mrs, m)
	}
	for range 2 {
		for i, m := range mrs {
			postRecv(t, qb, 1)
			post(t, qa, m, dst, 4096, 2)
			if wc := b.next(t); wc.Status != verbs.WCSuccess {
				t.Fatal(wc.Status)
			}
			if wc := a.next(t); wc.Status != verbs.WCSuccess {
				t.Fatal(wc.Status)
			}
			if dst.Bytes()[0] != byte(i) {
				t.Fatalf("memory %d: byte %d", i, dst.Bytes()[0])
			}
		}
	}
	if got := mapped(t, "many"); got > n+maxPeerMems {
		t.Errorf("%d mappings", got)
	}
}

// TestPeerHangs: a peer that takes connections but reads nothing is given more
// time than the wire, and then up.
func TestPeerHangs(t *testing.T) {
	a := newNode(t, 4096, 64, nil)
	a.dev.starve = 100 * time.Millisecond
	gid := a.dev.gid
	gid[15] ^= 1
	ln, err := net.ListenUnix("unixpacket", socketAddr(os.Geteuid(), gid))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	q := a.qp(t)
	modify(t, q, initAttr())
	attr := rtrAttr(a, 99, 5)
	attr.AH.DGID = gid
	modify(t, q, attr)
	rts := rtsAttr(5)
	rts.Timeout, rts.RetryCnt = 8, 1
	modify(t, q, rts)
	src := a.reg(t, 0)
	post(t, q, src, src, 4096, 1)
	sock, err := ln.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer sock.Close()
	if wc := a.next(t); wc.Status != verbs.WCRetryExcErr {
		t.Error(wc.Status)
	}
}

const memlockEnv = "S3RDMAFS_SHM_MEMLOCK"

// TestMemlock runs itself in a process with a small limit and no right to
// exceed it.
func TestMemlock(t *testing.T) {
	if os.Getenv(memlockEnv) != "" {
		checkMemlock(t)
		return
	}
	cmd := memlockCommand()
	type result struct {
		out []byte
		err error
	}
	done := make(chan result)
	go func() {
		// The bounding set of this thread, inherited by the process it starts.
		// Without CAP_SETPCAP there is nothing to give up.
		runtime.LockOSThread()
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_IPC_LOCK, 0, 0, 0); err != nil && err != unix.EPERM {
			done <- result{nil, err}
			return
		}
		out, err := cmd.CombinedOutput()
		done <- result{out, err}
	}()
	if r := <-done; r.err != nil || !bytes.Contains(r.out, []byte("--- PASS: TestMemlock")) {
		t.Errorf("%v\n%s", r.err, r.out)
	}
}

// Root of a user namespace has CAP_IPC_LOCK in it, which does not count.
func TestMemlockInAUserNamespace(t *testing.T) {
	cmd := memlockCommand()
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Skipf("user namespaces cannot be made here: %v", err)
	}
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestMemlock")) {
		t.Errorf("%v\n%s", err, out)
	}
}

// memlockCommand is this program, to run checkMemlock.
func memlockCommand() *exec.Cmd {
	cmd := exec.Command(os.Args[0], "-test.run=^TestMemlock$", "-test.v")
	cmd.Env = append(os.Environ(), memlockEnv+"=1")
	return cmd
}

func checkMemlock(t *testing.T) {
	limit := unix.Rlimit{Cur: 64 << 10, Max: 64 << 10}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		t.Fatal(err)
	}
	if _, unlimited := verbs.MemlockLimit(); unlimited {
		t.Fatal("CAP_IPC_LOCK is in effect")
	}
	a := newNode(t, 128<<10, 64, nil)
	b := newNode(t, 128<<10, 64, nil)
	reg := func(n *node, off, size int) verbs.MR {
		m, err := n.pd.RegMR(n.mem, off, size, remote)
		if err != nil {
			t.Errorf("register %d bytes: %v", size, err)
		}
		return m
	}
	refuse := func(n *node, size int) {
		_, err := n.pd.RegMR(n.mem, 0, size, remote)
		wantErr(t, fmt.Sprintf("register %d bytes", size), err, verbs.ErrMemlock)
	}
	refuse(a, 64<<10+1)
	m := reg(a, 0, 40<<10)
	refuse(b, 25<<10) // all devices count together
	k := reg(b, 4095, 2)
	refuse(b, 20<<10) // whole pages count
	mustClose(t, k)
	l := reg(b, 0, 24<<10)
	refuse(a, 1)
	mustClose(t, m, l)
	mustClose(t, reg(a, 0, 64<<10))
}
