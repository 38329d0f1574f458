package verbstest

import (
	"bytes"
	"testing"

	"s3rdmafs/verbs"
)

// testRights checks that a WRITE without the right to it changes nothing and
// breaks both QPs.
func testRights(t *testing.T, open Opener) {
	const size = 64 << 10
	access := []verbs.WCStatus{verbs.WCRemAccessErr}
	for _, c := range []struct {
		name   string
		bend   func(t *testing.T, b *endpoint, wr *verbs.SendWR)
		qpFlag verbs.Access
		want   []verbs.WCStatus
	}{
		{"wrong rkey", func(_ *testing.T, _ *endpoint, wr *verbs.SendWR) { wr.RKey ^= 0x100 }, remote, access},
		{"stale generation", func(_ *testing.T, _ *endpoint, wr *verbs.SendWR) { wr.RKey ^= 1 }, remote, access},
		{"beyond the end", func(_ *testing.T, _ *endpoint, wr *verbs.SendWR) { wr.RemoteAddr += size - 4095 }, remote, access},
		{"before the start", func(_ *testing.T, _ *endpoint, wr *verbs.SendWR) { wr.RemoteAddr-- }, remote, access},
		{"address wraps around", func(_ *testing.T, _ *endpoint, wr *verbs.SendWR) { wr.RemoteAddr = ^uint64(0) - 100 }, remote, access},
		{"region without remote write", func(t *testing.T, b *endpoint, wr *verbs.SendWR) {
			m := b.reg(t, 0, size, verbs.AccessLocalWrite)
			wr.RKey, wr.RemoteAddr = m.RKey(), m.Addr()
		}, remote, access},
		{"region of another PD", func(t *testing.T, b *endpoint, wr *verbs.SendWR) {
			pd := must(b.Device.AllocPD())(t)
			t.Cleanup(func() { mustClose(t, pd) })
			m := must(pd.RegMR(b.mem, 0, size, remote))(t)
			t.Cleanup(func() { mustClose(t, m) })
			wr.RKey, wr.RemoteAddr = m.RKey(), m.Addr()
		}, remote, access},
		{"QP without remote write", func(*testing.T, *endpoint, *verbs.SendWR) {}, 0,
			[]verbs.WCStatus{verbs.WCRemAccessErr, verbs.WCRemInvReqErr}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := newSide(t, open, size).endpoint(t), newSide(t, open, size).endpoint(t)
			a.modify(t, a.initAttr())
			ini := b.initAttr()
			ini.AccessFlags = c.qpFlag &^ verbs.AccessLocalWrite
			b.modify(t, ini)
			b.modify(t, b.rtrAttr(a.address()))
			b.modify(t, b.rtsAttr())
			a.modify(t, a.rtrAttr(b.address()))
			a.modify(t, a.rtsAttr())
			fill(a.mem.Bytes(), 1)
			fill(b.mem.Bytes(), 2)
			b.recv(t, 10)
			b.recv(t, 11)
			wr := a.write(b.address(), 4096, 5, 6)
			c.bend(t, b, &wr)
			a.send(t, wr)
			if wc := a.wantStatus(t, c.want...); wc.ID != 5 || wc.QPN != a.qp.Num() {
				t.Errorf("completion of ID %d, QP %d", wc.ID, wc.QPN)
			}
			a.wantState(t, verbs.StateErr)
			b.wantState(t, verbs.StateErr)
			// The refused request may have used up the first receive.
			if wc := b.next(t); wc.Status == verbs.WCSuccess || wc.ID != 10 {
				t.Errorf("first receive: ID %d, %v", wc.ID, wc.Status)
			}
			if wc := b.wantStatus(t, verbs.WCWRFlushErr); wc.ID != 11 {
				t.Errorf("second receive: ID %d", wc.ID)
			}
			wantBytes(t, b.mem.Bytes(), 2)
		})
	}
}

// testLocalRights checks the requester's side of the same.
func testLocalRights(t *testing.T, open Opener) {
	// Soft-RoCE calls a key that it does not know a local QP operation error.
	key := []verbs.WCStatus{verbs.WCLocProtErr, verbs.WCLocQPOpErr}
	for _, c := range []struct {
		name string
		bend func(t *testing.T, a *endpoint, sge *verbs.SGE)
		want []verbs.WCStatus
	}{
		{"wrong lkey", func(_ *testing.T, _ *endpoint, s *verbs.SGE) { s.LKey ^= 0x100 }, key},
		{"beyond the end", func(_ *testing.T, _ *endpoint, s *verbs.SGE) { s.Addr += 1 }, key[:1]},
		{"closed region", func(t *testing.T, a *endpoint, s *verbs.SGE) {
			m := must(a.pd.RegMR(a.mem, 0, 4096, 0))(t)
			s.LKey, s.Addr = m.LKey(), m.Addr()
			mustClose(t, m)
		}, key},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := pair(t, open, 4096)
			fill(b.mem.Bytes(), 2)
			b.recv(t, 1)
			wr := a.write(b.address(), 4096, 5, 6)
			c.bend(t, a, &wr.SGEs[0])
			a.send(t, wr)
			a.send(t, a.write(b.address(), 4096, 6, 6))
			if wc := a.wantStatus(t, c.want...); wc.ID != 5 {
				t.Errorf("completion of ID %d", wc.ID)
			}
			if wc := a.wantStatus(t, verbs.WCWRFlushErr); wc.ID != 6 {
				t.Errorf("flushed ID %d", wc.ID)
			}
			wantBytes(t, b.mem.Bytes(), 2)
			b.quiet(t)
		})
	}
	t.Run("remote write needs local write", func(t *testing.T) {
		s := newSide(t, open, 4096)
		m, err := s.pd.RegMR(s.mem, 0, 4096, verbs.AccessRemoteWrite)
		if err == nil {
			m.Close()
			t.Error("registered")
		}
	})
	t.Run("region outside of the memory", func(t *testing.T) {
		s := newSide(t, open, 4096)
		for _, r := range [][2]int{{0, 4097}, {4096, 1}, {-1, 10}, {0, 0}, {0, -1}, {1, 1<<63 - 1}} {
			if m, err := s.pd.RegMR(s.mem, r[0], r[1], remote); err == nil {
				m.Close()
				t.Errorf("registered %v of 4096 bytes", r)
			}
		}
	})
}

// testStaleKey checks that the key of a region that is gone stays refused when
// the same memory is registered again.
func testStaleKey(t *testing.T, open Opener) {
	a, b := pair(t, open, 4096)
	old := must(b.pd.RegMR(b.mem, 0, 4096, remote))(t)
	to := b.address()
	to.RKey, to.Addr = old.RKey(), old.Addr()
	mustClose(t, old)
	fresh := b.reg(t, 0, 4096, remote)
	if fresh.RKey() == to.RKey {
		t.Fatal("the key was given out again")
	}
	fill(b.mem.Bytes(), 2)
	b.recv(t, 1)
	a.send(t, a.write(to, 4096, 5, 6))
	a.wantStatus(t, verbs.WCRemAccessErr)
	wantBytes(t, b.mem.Bytes(), 2)
}

// storm keeps the write queue of a full until a WRITE fails, and returns the
// number of good ones.
func storm(t *testing.T, a *endpoint, to address, n int, failed chan<- verbs.WCStatus) {
	wr := a.write(to, n, 1, 0)
	wr.Opcode = verbs.OpWrite
	outstanding := 0
	for {
		for outstanding < 4 {
			if err := a.qp.PostSend(wr); err != nil {
				t.Errorf("post send: %v", err)
				close(failed)
				return
			}
			outstanding++
		}
		wc := a.next(t)
		outstanding--
		if wc.Status != verbs.WCSuccess {
			for ; outstanding > 0; outstanding-- {
				a.next(t)
			}
			failed <- wc.Status
			return
		}
	}
}

// underFire has a peer write into b's memory without pause, takes its right
// away with revoke, and checks that from then on the memory is b's alone.
func underFire(t *testing.T, open Opener, revoke func(t *testing.T, b *endpoint, m verbs.MR)) verbs.WCStatus {
	t.Helper()
	const size = 4 << 20
	a, b := newSide(t, open, size).endpoint(t), newSide(t, open, size).endpoint(t)
	a.modify(t, a.initAttr())
	b.modify(t, b.initAttr())
	b.modify(t, b.rtrAttr(a.address()))
	b.modify(t, b.rtsAttr())
	a.modify(t, a.rtrAttr(b.address()))
	a.modify(t, a.impatient())
	m := must(b.pd.RegMR(b.mem, 0, size, remote))(t)
	defer mustClose(t, m)
	fill(a.mem.Bytes(), 1)
	to := b.address()
	to.RKey, to.Addr = m.RKey(), m.Addr()
	failed := make(chan verbs.WCStatus, 1)
	go storm(t, a, to, size, failed)
	last := b.mem.Bytes()[size-1 : size]
	want := a.mem.Bytes()[size-1]
	eventually(t, "the first WRITE landed", func() bool { return bytes.Equal(last, []byte{want}) })

	revoke(t, b, m)
	clear(b.mem.Bytes())
	status, ok := <-failed
	if !ok {
		return status
	}
	if i := firstNonZero(b.mem.Bytes()); i >= 0 {
		t.Errorf("byte %d was written after the right was gone", i)
	}
	return status
}

func testDeregister(t *testing.T, open Opener) {
	status := underFire(t, open, func(t *testing.T, _ *endpoint, m verbs.MR) { mustClose(t, m) })
	if status != verbs.WCRemAccessErr {
		t.Errorf("the peer saw %v", status)
	}
}

// testRevoke takes the right away by the state of the QP.
func testRevoke(t *testing.T, open Opener) {
	for name, revoke := range map[string]func(*testing.T, *endpoint, verbs.MR){
		"to ERR": func(t *testing.T, b *endpoint, _ verbs.MR) {
			b.recv(t, 1)
			b.to(t, verbs.StateErr)
			b.wantStatus(t, verbs.WCWRFlushErr)
		},
		"to RESET": func(t *testing.T, b *endpoint, _ verbs.MR) { b.to(t, verbs.StateReset) },
		"destroyed": func(t *testing.T, b *endpoint, _ verbs.MR) {
			mustClose(t, b.qp)
		},
	} {
		t.Run(name, func(t *testing.T) {
			if status := underFire(t, open, revoke); status != verbs.WCRetryExcErr {
				t.Errorf("the peer saw %v", status)
			}
		})
	}
}
