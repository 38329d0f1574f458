package verbstest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"s3rdmafs/verbs"
)

// roleEnv makes Run serve as the second process of a test instead of testing.
const roleEnv = "S3RDMAFS_VERBSTEST_ROLE"

// order is what the first process asks of the second.
type order struct {
	Do        string // open, connect, recv, send, wait, fill, check
	Size      int
	To        address
	Impatient bool
	ID        uint64
	Imm       uint32
	Seed      uint64
}

// result of an order.
type result struct {
	Address address
	WC      verbs.WC
	Err     string
}

// peerProcess is the second process, with one device and one QP.
type peerProcess struct {
	t       *testing.T
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	orders  *json.Encoder
	results *json.Decoder
}

// startPeer runs the test called base in a process of its own.
func startPeer(t *testing.T, base string) *peerProcess {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run="+exactly(base), "-test.timeout=5m")
	cmd.Env = append(os.Environ(), roleEnv+"=peer")
	cmd.ExtraFiles = []*os.File{w}
	cmd.Stderr = os.Stderr
	stdin := must(cmd.StdinPipe())(t)
	err = cmd.Start()
	w.Close()
	if err != nil {
		r.Close()
		t.Fatal(err)
	}
	p := &peerProcess{t: t, cmd: cmd, stdin: stdin, orders: json.NewEncoder(stdin), results: json.NewDecoder(r)}
	t.Cleanup(func() {
		stdin.Close()
		r.Close()
		if cmd.ProcessState == nil {
			if err := cmd.Wait(); err != nil {
				t.Errorf("second process: %v", err)
			}
		}
	})
	return p
}

// exactly is the pattern of -test.run for one test or subtest.
func exactly(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

func (p *peerProcess) do(o order) result {
	p.t.Helper()
	if err := p.orders.Encode(o); err != nil {
		p.t.Fatalf("second process: %s: %v", o.Do, err)
	}
	var r result
	if err := p.results.Decode(&r); err != nil {
		p.t.Fatalf("second process: %s: %v", o.Do, err)
	}
	if r.Err != "" {
		p.t.Fatalf("second process: %s: %s", o.Do, r.Err)
	}
	return r
}

// kill ends the process without a chance to say goodbye.
func (p *peerProcess) kill() {
	p.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := p.cmd.Wait(); !errors.As(err, &exit) {
		p.t.Fatalf("killed process: %v", err)
	}
}

// servePeer carries out orders until the first process closes the pipe.
func servePeer(t *testing.T, open Opener) {
	out := os.NewFile(3, "results")
	defer out.Close()
	orders, results := json.NewDecoder(os.Stdin), json.NewEncoder(out)
	var e *endpoint
	var to address
	for {
		var o order
		if err := orders.Decode(&o); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		var r result
		switch o.Do {
		case "open":
			e = newSide(t, open, o.Size).endpoint(t)
			e.modify(t, e.initAttr())
			r.Address = e.address()
		case "connect":
			to = o.To
			e.modify(t, e.rtrAttr(to))
			if o.Impatient {
				e.modify(t, e.impatient())
			} else {
				e.modify(t, e.rtsAttr())
			}
		case "recv":
			e.recv(t, o.ID)
		case "send":
			e.send(t, e.write(to, o.Size, o.ID, o.Imm))
		case "wait":
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			var err error
			if r.WC, err = e.await(ctx); err != nil {
				r.Err = err.Error()
			}
			cancel()
		case "fill":
			fill(e.mem.Bytes()[:o.Size], o.Seed)
		case "check":
			want := make([]byte, o.Size)
			fill(want, o.Seed)
			if string(want) != string(e.mem.Bytes()[:o.Size]) {
				r.Err = "data differs"
			}
		default:
			r.Err = "unknown order"
		}
		if err := results.Encode(r); err != nil {
			t.Fatal(err)
		}
	}
}

// testTwoProcesses transfers in both directions between processes.
func testTwoProcesses(t *testing.T, open Opener, base string) {
	const size = 3<<20 + 5
	a := newSide(t, open, size).endpoint(t)
	p := startPeer(t, base)
	b := p.do(order{Do: "open", Size: size}).Address
	a.modify(t, a.initAttr())
	a.modify(t, a.rtrAttr(b))
	p.do(order{Do: "connect", To: a.address()})
	a.modify(t, a.rtsAttr())
	for i := range uint64(3) {
		fill(a.mem.Bytes(), i)
		p.do(order{Do: "recv", ID: i})
		a.send(t, a.write(b, size, 10+i, 0x01020304+uint32(i)))
		wantRecv(t, p.do(order{Do: "wait"}).WC, b.QPN, i, 0x01020304+uint32(i), size)
		wantSent(t, a.next(t), a.qp.Num(), 10+i)
		p.do(order{Do: "check", Size: size, Seed: i})

		p.do(order{Do: "fill", Size: size, Seed: 100 + i})
		a.recv(t, 20+i)
		p.do(order{Do: "send", Size: size, ID: 30 + i, Imm: 0xa0b0c0d0})
		wantRecv(t, a.next(t), a.qp.Num(), 20+i, 0xa0b0c0d0, size)
		wantSent(t, p.do(order{Do: "wait"}).WC, b.QPN, 30+i)
		wantBytes(t, a.mem.Bytes()[:size], 100+i)
	}
}

// testProcessDies kills the process at the other end, in both roles.
func testProcessDies(t *testing.T, open Opener, base string) {
	const size = 16 << 20
	s := newSide(t, open, size)

	t.Run("responder", func(t *testing.T) {
		a := s.endpoint(t)
		p := startPeer(t, base)
		b := p.do(order{Do: "open", Size: size}).Address
		a.modify(t, a.initAttr())
		a.modify(t, a.rtrAttr(b))
		p.do(order{Do: "connect", To: a.address()})
		a.modify(t, a.impatient())
		p.do(order{Do: "recv", ID: 1})
		a.send(t, a.write(b, size, 1, 1))
		wantSent(t, a.next(t), a.qp.Num(), 1)
		for i := range uint64(8) {
			wr := a.write(b, size, 2+i, 1)
			wr.Opcode = verbs.OpWrite
			a.send(t, wr)
		}
		p.kill()
		// Some may have got through; the first that did not ends the connection.
		status := verbs.WCSuccess
		for i := range uint64(8) {
			wc := s.next(t)
			switch {
			case wc.ID != 2+i:
				t.Fatalf("completion of %d, want %d", wc.ID, 2+i)
			case status == verbs.WCSuccess && wc.Status != verbs.WCSuccess:
				status = wc.Status
			case status != verbs.WCSuccess && wc.Status != verbs.WCWRFlushErr:
				t.Fatalf("completion %v after %v", wc.Status, status)
			}
		}
		if status != verbs.WCRetryExcErr {
			t.Errorf("the connection ended with %v", status)
		}
	})

	t.Run("requester", func(t *testing.T) {
		b := s.endpoint(t)
		p := startPeer(t, base)
		from := p.do(order{Do: "open", Size: size}).Address
		b.modify(t, b.initAttr())
		b.modify(t, b.rtrAttr(from))
		b.recv(t, 1)
		p.do(order{Do: "connect", To: b.address(), Impatient: true})
		p.do(order{Do: "send", Size: size, ID: 2, Imm: 3})
		p.kill()
		b.to(t, verbs.StateErr)
		clear(b.mem.Bytes())
		if wc := s.next(t); wc.ID != 1 || wc.Status != verbs.WCWRFlushErr && wc.Status != verbs.WCSuccess {
			t.Errorf("receive %d: %v", wc.ID, wc.Status)
		}

		// The device goes on with others.
		q := startPeer(t, base)
		from = q.do(order{Do: "open", Size: size}).Address
		b.to(t, verbs.StateReset)
		b.psn = (b.psn + 4321) & 0xffffff
		b.modify(t, b.initAttr())
		b.modify(t, b.rtrAttr(from))
		if i := firstNonZero(b.mem.Bytes()); i >= 0 {
			t.Fatalf("byte %d was written by the dead", i)
		}
		b.recv(t, 5)
		q.do(order{Do: "connect", To: b.address()})
		q.do(order{Do: "fill", Size: size, Seed: 9})
		q.do(order{Do: "send", Size: size, ID: 6, Imm: 7})
		wantRecv(t, s.next(t), b.qp.Num(), 5, 7, size)
		wantBytes(t, b.mem.Bytes()[:size], 9)
	})
}
