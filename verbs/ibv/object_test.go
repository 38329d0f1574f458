//go:build cgo

package ibv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"s3rdmafs/verbs"
)

// poll waits for n completions of cq.
func poll(t *testing.T, cq verbs.CQ, n int) []verbs.WC {
	t.Helper()
	var got []verbs.WC
	wc := make([]verbs.WC, n)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for {
		k, err := cq.Poll(wc[:n-len(got)])
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, wc[:k]...); len(got) == n {
			return got
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%d of %d completions: %+v", len(got), n, got)
		}
	}
}

func TestWriteWithImm(t *testing.T) {
	f := newFake(t)
	r := connected(t, f)
	data := r.mem.Bytes()
	copy(data, "first half, second")
	if err := r.b.PostRecv(verbs.RecvWR{ID: 7}); err != nil {
		t.Fatal(err)
	}
	const target = 4096
	err := r.a.PostSend(verbs.SendWR{ID: 0x1234567890, Opcode: verbs.OpWriteWithImm, Signaled: true, Imm: 0x01020304,
		SGEs:       []verbs.SGE{{Addr: r.mr.Addr(), Length: 10, LKey: r.mr.LKey()}, {Addr: r.mr.Addr() + 10, Length: 8, LKey: r.mr.LKey()}},
		RemoteAddr: r.mr.Addr() + target, RKey: r.mr.RKey()})
	if err != nil {
		t.Fatal(err)
	}
	byID := map[uint64]verbs.WC{}
	for _, wc := range poll(t, r.cq, 2) {
		byID[wc.ID] = wc
	}
	want := map[uint64]verbs.WC{
		7:            {ID: 7, Opcode: verbs.WCRecvRDMAWithImm, ByteLen: 18, Imm: 0x01020304, QPN: r.b.Num(), Flags: verbs.WCFlagWithImm | verbs.WCFlagGRH},
		0x1234567890: {ID: 0x1234567890, Opcode: verbs.WCRDMAWrite, ByteLen: 18, QPN: r.a.Num()},
	}
	if !reflect.DeepEqual(byID, want) {
		t.Errorf("completions %+v\nwant %+v", byID, want)
	}
	if !bytes.Equal(data[target:target+18], []byte("first half, second")) {
		t.Errorf("landed: %q", data[target:target+18])
	}
	line := fmt.Sprintf("post_send id=1234567890 opcode=1 flags=2 imm=01020304 remote=%x rkey=%x sges=2", r.mr.Addr()+target, r.mr.RKey())
	if got := f.calls(t, "post_send"); !reflect.DeepEqual(got, []string{line}) {
		t.Errorf("work request: %q, want %q", got, line)
	}
}

// TestSoftRoCERetries: the count that Soft-RoCE would never end with is not used
// there, where the lost try's time goes to the others, nor changed elsewhere.
func TestSoftRoCERetries(t *testing.T) {
	for parent, want := range map[string]string{"": " timeout=14 retry=7 ", "eth0": " timeout=15 retry=6 "} {
		f := newFake(t)
		if parent != "" {
			dir := filepath.Join(f.dir, "sys", "fake0")
			if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "parent"), []byte(parent+"\n"), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		connected(t, f)
		calls := f.calls(t, "ibv_modify_qp")
		var rts []string
		for _, c := range calls {
			if strings.Contains(c, fmt.Sprintf(" state=%d ", verbs.StateRTS)) {
				rts = append(rts, c)
			}
		}
		if len(rts) == 0 {
			t.Fatalf("no QP went to RTS: %q", calls)
		}
		for _, c := range rts {
			if !strings.Contains(c, want) {
				t.Errorf("parent %q: %q, want%s", parent, c, want)
			}
		}
	}
}

// TestAttributes gives each field a value of its own, so that none can be
// swapped for another.
func TestAttributes(t *testing.T) {
	f := newFake(t)
	r := newRig(t, f)
	q, err := r.pd.CreateQP(verbs.QPInitAttr{SendCQ: r.cq, RecvCQ: r.cq, SigAll: true,
		Cap: verbs.QPCap{MaxSendWR: 11, MaxRecvWR: 12, MaxSendSGE: 3, MaxRecvSGE: 4}})
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, q)
	err = q.Modify(verbs.QPAttr{State: verbs.StateRTR, AccessFlags: verbs.AccessRemoteWrite, PKeyIndex: 9, Port: 1,
		AH:      verbs.AHAttr{DGID: testGID, SGIDIndex: 21, DLID: 0x22, HopLimit: 23, TrafficClass: 24, SL: 5, SrcPathBits: 26, IsGlobal: true, PortNum: 27},
		PathMTU: verbs.MTU2048, DestQPN: 0x31, RQPSN: 0x32, SQPSN: 0x33, MaxRdAtomic: 34, MaxDestRdAtomic: 35, MinRNRTimer: 36, Timeout: 37, RetryCnt: 38, RNRRetry: 39},
		verbs.MaskRTS)
	if !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("RESET to RTR: %v", err)
	}
	want := []string{
		"ibv_create_qp send_wr=4 recv_wr=4 send_sge=2 recv_sge=1 inline=0 sig_all=0 type=2",
		"ibv_create_qp send_wr=4 recv_wr=4 send_sge=2 recv_sge=1 inline=0 sig_all=0 type=2",
		"ibv_create_qp send_wr=11 recv_wr=12 send_sge=3 recv_sge=4 inline=0 sig_all=1 type=2",
		"ibv_modify_qp mask=12e01 state=2 access=2 pkey=9 port=1 mtu=4 dest=31 rq_psn=32 sq_psn=33 rd=34 dest_rd=35 rnr_timer=36 timeout=37" +
			" retry=38 rnr=39 global=1 dgid=00..01 sgid_index=21 hop=23 tclass=24 dlid=22 sl=5 path_bits=26 ah_port=27",
	}
	if got := f.calls(t, "ibv_create_qp", "ibv_modify_qp"); !reflect.DeepEqual(got, want) {
		t.Errorf("calls:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestTeardownOrder(t *testing.T) {
	f := newFake(t)
	r, err := f.build()
	if err != nil {
		t.Fatal(err)
	}
	busy := func(name string, c interface{ Close() error }) {
		t.Helper()
		if err := c.Close(); !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("close of %s in use: %v", name, err)
		}
	}
	busy("device", r.dev)
	busy("PD", r.pd)
	busy("CQ", r.cq)
	busy("channel", r.ch)
	mustClose(t, r.b)
	busy("PD", r.pd)
	busy("CQ", r.cq)
	for range 2 { // the second time does nothing
		if err := r.close(); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"ibv_destroy_qp", "ibv_destroy_qp", "ibv_destroy_cq", "ibv_destroy_comp_channel", "ibv_dereg_mr", "ibv_dealloc_pd", "ibv_close_device"}
	if got := f.calls(t, "ibv_destroy", "ibv_de", "ibv_close"); !reflect.DeepEqual(got, want) {
		t.Errorf("teardown: %q", got)
	}
}

func TestUseAfterClose(t *testing.T) {
	r, err := newFake(t).build()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	init := verbs.QPInitAttr{SendCQ: r.cq, RecvCQ: r.cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}}
	mem, err := verbs.NewMemory("ibv-test", 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, mem)
	for name, f := range map[string]func() error{
		"Port":              func() error { _, err := r.dev.Port(1); return err },
		"GIDs":              func() error { _, err := r.dev.GIDs(1); return err },
		"AllocPD":           func() error { _, err := r.dev.AllocPD(); return err },
		"CreateCompChannel": func() error { _, err := r.dev.CreateCompChannel(); return err },
		"CreateCQ":          func() error { _, err := r.dev.CreateCQ(1, nil); return err },
		"RegMR":             func() error { _, err := r.pd.RegMR(mem, 0, 4096, 0); return err },
		"CreateQP":          func() error { _, err := r.pd.CreateQP(init); return err },
		"Poll":              func() error { _, err := r.cq.Poll(make([]verbs.WC, 1)); return err },
		"ReqNotify":         func() error { return r.cq.ReqNotify() },
		"Modify":            func() error { return r.a.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState) },
		"State":             func() error { _, err := r.a.State(); return err },
		"PostSend":          func() error { return r.a.PostSend(verbs.SendWR{}) },
		"PostRecv":          func() error { return r.a.PostRecv(verbs.RecvWR{}) },
		"Wait":              func() error { _, err := r.ch.Wait(t.Context()); return err },
	} {
		if err := f(); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
	if _, open := <-r.dev.Events(); open {
		t.Error("event after Close")
	}
}

// TestErrorPaths fails each call of building and checks what is left behind.
func TestErrorPaths(t *testing.T) {
	for _, c := range []struct {
		op    string
		nth   int
		errno unix.Errno
		want  error
	}{
		{"ibv_get_device_list", 1, unix.ENOMEM, verbs.ErrNoResource},
		{"ibv_open_device", 1, unix.EACCES, unix.EACCES},
		{"ibv_query_device", 1, unix.EIO, unix.EIO},
		{"ibv_alloc_pd", 1, unix.ENOMEM, verbs.ErrNoResource},
		{"ibv_reg_mr", 1, unix.EINVAL, verbs.ErrInvalid},
		{"ibv_create_comp_channel", 1, unix.EMFILE, verbs.ErrNoResource},
		{"ibv_create_cq", 1, unix.EINVAL, verbs.ErrInvalid},
		{"ibv_create_qp", 1, unix.ENOSYS, verbs.ErrUnsupported},
		{"ibv_create_qp", 2, unix.ENOMEM, verbs.ErrNoResource},
	} {
		t.Run(fmt.Sprintf("%s/%d", c.op, c.nth), func(t *testing.T) {
			f := newFake(t)
			before := openFDs(t)
			f.fail(c.op, c.nth, c.errno)
			_, err := f.build()
			if !errors.Is(err, c.want) || !errors.Is(err, c.errno) {
				t.Errorf("error: %v", err)
			}
			f.checkClean(t)
			if after := openFDs(t); after != before {
				t.Errorf("%d file descriptors before, %d after", before, after)
			}
			r, err := f.build()
			if err != nil {
				t.Fatalf("afterwards: %v", err)
			}
			if err := r.close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestFailedClose: an object whose destruction fails lives on.
func TestFailedClose(t *testing.T) {
	f := newFake(t)
	r, err := f.build()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		op  string
		obj interface{ Close() error }
	}{
		{"ibv_destroy_qp", r.a}, {"ibv_destroy_qp", r.b}, {"ibv_destroy_cq", r.cq}, {"ibv_destroy_comp_channel", r.ch},
		{"ibv_dereg_mr", r.mr}, {"ibv_dealloc_pd", r.pd}, {"ibv_close_device", r.dev},
	} {
		f.fail(c.op, 1, unix.EBUSY)
		if err := c.obj.Close(); !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("%s: %v", c.op, err)
		}
		mustClose(t, c.obj)
	}
	mustClose(t, r.mem)
}

func TestFastPathErrors(t *testing.T) {
	f := newFake(t)
	r := connected(t, f)
	for _, c := range []struct {
		op    string
		errno unix.Errno
		want  error
		call  func() error
	}{
		{"post_send", unix.ENOMEM, verbs.ErrQueueFull, func() error { return r.a.PostSend(verbs.SendWR{}) }},
		{"post_send", unix.EINVAL, verbs.ErrInvalid, func() error { return r.a.PostSend(verbs.SendWR{}) }},
		{"post_recv", unix.ENOMEM, verbs.ErrQueueFull, func() error { return r.a.PostRecv(verbs.RecvWR{}) }},
		{"poll_cq", unix.EIO, unix.EIO, func() error { _, err := r.cq.Poll(make([]verbs.WC, 1)); return err }},
		{"req_notify_cq", unix.EIO, unix.EIO, func() error { return r.cq.ReqNotify() }},
		{"ibv_query_qp", unix.EIO, unix.EIO, func() error { _, err := r.a.State(); return err }},
		{"ibv_query_port", unix.EIO, unix.EIO, func() error { _, err := r.dev.Port(1); return err }},
		{"_ibv_query_gid_table", unix.EIO, unix.EIO, func() error { _, err := r.dev.GIDs(1); return err }},
		{"ibv_modify_qp", unix.ETIMEDOUT, verbs.ErrUnreachable, func() error {
			return r.a.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState)
		}},
	} {
		f.fail(c.op, 1, c.errno)
		if err := c.call(); !errors.Is(err, c.want) || !errors.Is(err, c.errno) {
			t.Errorf("%s with %v: %v", c.op, c.errno, err)
		}
	}
}

func TestArguments(t *testing.T) {
	f := newFake(t)
	r := newRig(t, f)
	other := mustOpen(t, f, "fakeib1")
	defer mustClose(t, other)
	otherCQ, err := other.CreateCQ(1, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, otherCQ)
	otherChannel, err := other.CreateCompChannel()
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, otherChannel)
	small := verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}
	calls := f.calls(t)
	for name, call := range map[string]func() error{
		"region behind the end": func() error { _, err := r.pd.RegMR(r.mem, 1<<16-1, 2, 0); return err },
		"region before start":   func() error { _, err := r.pd.RegMR(r.mem, -1, 2, 0); return err },
		"empty region":          func() error { _, err := r.pd.RegMR(r.mem, 0, 0, 0); return err },
		"CQ without entries":    func() error { _, err := r.dev.CreateCQ(0, nil); return err },
		"strange channel":       func() error { _, err := r.dev.CreateCQ(1, otherChannel); return err },
		"strange send CQ": func() error {
			_, err := r.pd.CreateQP(verbs.QPInitAttr{SendCQ: otherCQ, RecvCQ: r.cq, Cap: small})
			return err
		},
		"no receive CQ": func() error { _, err := r.pd.CreateQP(verbs.QPInitAttr{SendCQ: r.cq, Cap: small}); return err },
		"too many SGEs": func() error {
			_, err := r.pd.CreateQP(verbs.QPInitAttr{SendCQ: r.cq, RecvCQ: r.cq, Cap: verbs.QPCap{MaxSendSGE: 33}})
			return err
		},
		"GID index": func() error {
			return r.a.Modify(verbs.QPAttr{State: verbs.StateRTR, AH: verbs.AHAttr{SGIDIndex: 256}}, verbs.MaskRTR)
		},
		"send in RESET":    func() error { return r.a.PostSend(verbs.SendWR{}) },
		"receive in RESET": func() error { return r.a.PostRecv(verbs.RecvWR{}) },
		"unknown opcode":   func() error { return r.a.PostSend(verbs.SendWR{Opcode: 77}) },
		"SGE list":         func() error { return r.a.PostRecv(verbs.RecvWR{SGEs: make([]verbs.SGE, 33)}) },
	} {
		if err := call(); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if now := f.calls(t); len(now) != len(calls) {
		t.Errorf("the library was asked: %q", now[len(calls):])
	}
	plain, err := r.dev.CreateCQ(5, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, plain)
	if plain.Depth() != 8 {
		t.Errorf("depth %d, the device made 8", plain.Depth())
	}
	if err := plain.ReqNotify(); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("arming a CQ without channel: %v", err)
	}
}

func TestChannelWait(t *testing.T) {
	f := newFake(t)
	r := connected(t, f)
	if err := r.cq.ReqNotify(); err != nil {
		t.Fatal(err)
	}
	got := make(chan verbs.CQ, 1)
	go func() {
		cq, err := r.ch.Wait(t.Context())
		if err != nil {
			t.Error(err)
		}
		got <- cq
	}()
	if err := r.a.PostSend(verbs.SendWR{Opcode: verbs.OpWrite, Signaled: true}); err != nil {
		t.Fatal(err)
	}
	if cq := <-got; cq != r.cq {
		t.Errorf("event of CQ %v", cq)
	}
	poll(t, r.cq, 1)
}

func TestChannelWaitCancelled(t *testing.T) {
	r := connected(t, newFake(t))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 3 { // waiters that take turns all see the end
		wg.Go(func() {
			if _, err := r.ch.Wait(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled wait: %v", err)
			}
		})
	}
	cancel()
	wg.Wait()
	if err := r.cq.ReqNotify(); err != nil {
		t.Fatal(err)
	}
	if err := r.a.PostSend(verbs.SendWR{Opcode: verbs.OpWrite, Signaled: true}); err != nil {
		t.Fatal(err)
	}
	if cq, err := r.ch.Wait(t.Context()); err != nil || cq != r.cq {
		t.Errorf("wait after a cancelled one: %v, %v", cq, err)
	}
}

func TestChannelCloseEndsWait(t *testing.T) {
	f := newFake(t)
	d := mustOpen(t, f, "fake0")
	defer mustClose(t, d)
	ch, err := d.CreateCompChannel()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	for range 2 {
		go func() {
			_, err := ch.Wait(t.Context())
			ended <- err
		}()
	}
	mustClose(t, ch)
	for range 2 {
		if err := <-ended; !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("wait on a closed channel: %v", err)
		}
	}
}

// TestCloseWithPendingEvent: a CQ goes away while its event lies in the channel.
func TestCloseWithPendingEvent(t *testing.T) {
	f := newFake(t)
	r := connected(t, f)
	cq2, err := r.dev.CreateCQ(4, r.ch)
	if err != nil {
		t.Fatal(err)
	}
	q, err := r.pd.CreateQP(verbs.QPInitAttr{SendCQ: cq2, RecvCQ: cq2, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Modify(verbs.QPAttr{State: verbs.StateInit, Port: 1}, verbs.MaskInit); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{q.PostRecv(verbs.RecvWR{}), cq2.ReqNotify(), q.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, q)
	mustClose(t, cq2)
	if err := r.cq.ReqNotify(); err != nil {
		t.Fatal(err)
	}
	if err := r.a.PostSend(verbs.SendWR{Opcode: verbs.OpWrite, Signaled: true}); err != nil {
		t.Fatal(err)
	}
	if cq, err := r.ch.Wait(t.Context()); err != nil || cq != r.cq {
		t.Errorf("event of %v, %v", cq, err)
	}
}

func TestEvents(t *testing.T) {
	f := newFake(t)
	d := mustOpen(t, f, "fake0")
	defer mustClose(t, d)
	for _, c := range []struct {
		raw  int32
		want verbs.Event
	}{
		{evPortErr, verbs.Event{Type: verbs.EventPortError, Port: 1}},
		{evPortActive, verbs.Event{Type: verbs.EventPortActive, Port: 1}},
		{evGIDChange, verbs.Event{Type: verbs.EventGIDChange, Port: 1}},
		{evDeviceFatal, verbs.Event{Type: verbs.EventDeviceFatal}},
		{11, verbs.Event{Type: verbs.EventOther, Port: 1}}, // LID change
	} {
		f.raise(c.raw, 1)
		if e := <-d.Events(); e != c.want {
			t.Errorf("event %d: %+v, want %+v", c.raw, e, c.want)
		}
	}
}

func TestCQOverrun(t *testing.T) {
	f := newFake(t)
	r := newRig(t, f)
	cq, err := r.dev.CreateCQ(1, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, cq)
	q, err := r.pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 2}})
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, q)
	if err := q.Modify(verbs.QPAttr{State: verbs.StateInit, Port: 1}, verbs.MaskInit); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := q.PostRecv(verbs.RecvWR{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState); err != nil {
		t.Fatal(err)
	}
	if e := <-r.dev.Events(); e.Type != verbs.EventCQError {
		t.Errorf("event %+v", e)
	}
	if n, err := cq.Poll(make([]verbs.WC, 4)); !errors.Is(err, verbs.ErrCQOverrun) {
		t.Errorf("poll of an overrun CQ: %d, %v", n, err)
	}
}

// TestConcurrentClose closes objects under the hands of their users.
func TestConcurrentClose(t *testing.T) {
	r, err := newFake(t).build()
	if err != nil {
		t.Fatal(err)
	}
	connect(t, r.a, r.b, 1, 2)
	connect(t, r.b, r.a, 2, 1)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var posted atomic.Int32
	started := make(chan struct{})
	wg.Go(func() {
		for i := 0; ; i++ {
			err := r.a.PostSend(verbs.SendWR{Opcode: verbs.OpWrite, Signaled: true})
			if errors.Is(err, verbs.ErrClosed) {
				return
			}
			if err == nil && posted.Add(1) == 100 {
				close(started)
			}
		}
	})
	wg.Go(func() {
		wc := make([]verbs.WC, 8)
		for {
			if _, err := r.cq.Poll(wc); errors.Is(err, verbs.ErrClosed) {
				return
			}
		}
	})
	wg.Go(func() {
		for {
			_ = r.cq.ReqNotify() // refused when the CQ is gone
			if _, err := r.ch.Wait(ctx); err != nil {
				return
			}
		}
	})
	wg.Go(func() {
		for {
			err := errors.Join(r.b.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState), r.b.PostRecv(verbs.RecvWR{}))
			if errors.Is(err, verbs.ErrClosed) {
				return
			}
		}
	})
	<-started
	mustClose(t, r.a)
	mustClose(t, r.b)
	mustClose(t, r.cq)
	cancel()
	if err := r.close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

// TestPollMany takes more completions than one call into C gives.
func TestPollMany(t *testing.T) {
	const n = 150
	r := newRig(t, newFake(t))
	cq, err := r.dev.CreateCQ(n, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, cq)
	q, err := r.pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: n}})
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, q)
	if err := q.Modify(verbs.QPAttr{State: verbs.StateInit, Port: 1}, verbs.MaskInit); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if err := q.PostRecv(verbs.RecvWR{ID: uint64(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.PostRecv(verbs.RecvWR{}); !errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("one too many: %v", err)
	}
	if err := q.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState); err != nil {
		t.Fatal(err)
	}
	wc := make([]verbs.WC, n+1)
	got, err := cq.Poll(wc)
	if err != nil || got != n {
		t.Fatalf("%d completions, %v", got, err)
	}
	for i, w := range wc[:n] {
		if want := (verbs.WC{ID: uint64(i), Status: verbs.WCWRFlushErr, QPN: q.Num()}); w != want {
			t.Fatalf("completion %d: %+v, want %+v", i, w, want)
		}
	}
}

// TestPostAllocates: the data path makes no garbage.
func TestPostAllocates(t *testing.T) {
	r := connected(t, newFake(t))
	wr := verbs.SendWR{Opcode: verbs.OpWrite, SGEs: []verbs.SGE{{Addr: r.mr.Addr(), Length: 8, LKey: r.mr.LKey()}},
		RemoteAddr: r.mr.Addr() + 64, RKey: r.mr.RKey(), Signaled: true}
	wc := make([]verbs.WC, 4)
	allocs := testing.AllocsPerRun(100, func() {
		if err := r.a.PostSend(wr); err != nil {
			t.Fatal(err)
		}
		for n := 0; n == 0; {
			var err error
			if n, err = r.cq.Poll(wc); err != nil {
				t.Fatal(err)
			}
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations a transfer", allocs)
	}
}
