package shm

import (
	"context"
	"errors"
	"testing"

	"s3rdmafs/verbs"
)

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// TestPostNeedsState: a driver may take such posts and lose them.
func TestPostNeedsState(t *testing.T) {
	a := newNode(t, 4096, 64, nil)
	q := a.qp(t)
	send := verbs.SendWR{Opcode: verbs.OpWrite}
	wantErr(t, "receive in RESET", q.PostRecv(verbs.RecvWR{}), verbs.ErrInvalid)
	wantErr(t, "send in RESET", q.PostSend(send), verbs.ErrInvalid)
	modify(t, q, initAttr())
	wantErr(t, "receive in INIT", q.PostRecv(verbs.RecvWR{}), nil)
	wantErr(t, "send in INIT", q.PostSend(send), verbs.ErrInvalid)
	modify(t, q, rtrAttr(a, q.Num(), 5))
	wantErr(t, "send in RTR", q.PostSend(send), verbs.ErrInvalid)
	modify(t, q, rtsAttr(5))
	wantErr(t, "send of an unknown kind", q.PostSend(verbs.SendWR{Opcode: 9}), verbs.ErrInvalid)
	wantErr(t, "send with too many SGEs", q.PostSend(verbs.SendWR{SGEs: make([]verbs.SGE, 5)}), verbs.ErrInvalid)
	wantErr(t, "receive with too many SGEs", q.PostRecv(verbs.RecvWR{SGEs: make([]verbs.SGE, 2)}), verbs.ErrInvalid)
	mustClose(t, q)
	wantErr(t, "send after Close", q.PostSend(send), verbs.ErrClosed)
	wantErr(t, "receive after Close", q.PostRecv(verbs.RecvWR{}), verbs.ErrClosed)
	wantErr(t, "modify after Close", q.Modify(initAttr(), verbs.MaskInit), verbs.ErrClosed)
}

// TestAttributeValues: each attribute is checked on its own.
func TestAttributeValues(t *testing.T) {
	a := newNode(t, 4096, 64, nil)
	for name, c := range map[string]struct {
		to   verbs.QPState
		bend func(*verbs.QPAttr)
		want error
	}{
		"P_Key index":       {verbs.StateInit, func(x *verbs.QPAttr) { x.PKeyIndex = 1 }, verbs.ErrInvalid},
		"port":              {verbs.StateInit, func(x *verbs.QPAttr) { x.Port = 2 }, verbs.ErrInvalid},
		"access":            {verbs.StateInit, func(x *verbs.QPAttr) { x.AccessFlags = 1 << 20 }, verbs.ErrInvalid},
		"MTU 0":             {verbs.StateRTR, func(x *verbs.QPAttr) { x.PathMTU = 0 }, verbs.ErrInvalid},
		"MTU 6":             {verbs.StateRTR, func(x *verbs.QPAttr) { x.PathMTU = 6 }, verbs.ErrInvalid},
		"QP number":         {verbs.StateRTR, func(x *verbs.QPAttr) { x.DestQPN = 1 << 24 }, verbs.ErrInvalid},
		"RQ PSN":            {verbs.StateRTR, func(x *verbs.QPAttr) { x.RQPSN = 1 << 24 }, verbs.ErrInvalid},
		"RNR timer":         {verbs.StateRTR, func(x *verbs.QPAttr) { x.MinRNRTimer = 32 }, verbs.ErrInvalid},
		"local address":     {verbs.StateRTR, func(x *verbs.QPAttr) { x.AH.IsGlobal = false }, verbs.ErrInvalid},
		"address port":      {verbs.StateRTR, func(x *verbs.QPAttr) { x.AH.PortNum = 0 }, verbs.ErrInvalid},
		"GID index":         {verbs.StateRTR, func(x *verbs.QPAttr) { x.AH.SGIDIndex = 1 }, verbs.ErrInvalid},
		"service level":     {verbs.StateRTR, func(x *verbs.QPAttr) { x.AH.SL = 16 }, verbs.ErrInvalid},
		"GID of a real NIC": {verbs.StateRTR, func(x *verbs.QPAttr) { x.AH.DGID = verbs.GID{10: 0xff, 11: 0xff, 12: 10} }, verbs.ErrUnreachable},
		"reads as target":   {verbs.StateRTR, func(x *verbs.QPAttr) { x.MaxDestRdAtomic = 17 }, verbs.ErrInvalid},
		"SQ PSN":            {verbs.StateRTS, func(x *verbs.QPAttr) { x.SQPSN = 1 << 24 }, verbs.ErrInvalid},
		"timeout":           {verbs.StateRTS, func(x *verbs.QPAttr) { x.Timeout = 32 }, verbs.ErrInvalid},
		"retries":           {verbs.StateRTS, func(x *verbs.QPAttr) { x.RetryCnt = 8 }, verbs.ErrInvalid},
		"RNR retries":       {verbs.StateRTS, func(x *verbs.QPAttr) { x.RNRRetry = 8 }, verbs.ErrInvalid},
		"reads":             {verbs.StateRTS, func(x *verbs.QPAttr) { x.MaxRdAtomic = 17 }, verbs.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			q := a.qp(t)
			steps := []struct {
				attr verbs.QPAttr
				mask verbs.QPAttrMask
			}{{initAttr(), verbs.MaskInit}, {rtrAttr(a, q.Num(), 5), verbs.MaskRTR}, {rtsAttr(5), verbs.MaskRTS}}
			for _, s := range steps {
				if s.attr.State == c.to {
					good := s.attr
					c.bend(&s.attr)
					wantErr(t, "bad value", q.Modify(s.attr, s.mask), c.want)
					wantErr(t, "good value", q.Modify(good, s.mask), nil)
					return
				}
				modify(t, q, s.attr)
			}
		})
	}
}

// TestUnsignaledKeepsQueueEntry: only the completion of a later send frees the
// entries of unsignaled ones.
func TestUnsignaledKeepsQueueEntry(t *testing.T) {
	a := newNode(t, 4096, 64, nil)
	q, err := a.pd.CreateQP(verbs.QPInitAttr{SendCQ: a.cq, RecvCQ: a.cq, Cap: verbs.QPCap{MaxSendWR: 3, MaxRecvWR: 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, q)
	modify(t, q, initAttr())
	modify(t, q, rtrAttr(a, q.Num(), 5))
	modify(t, q, rtsAttr(5))
	for range 3 {
		for i := range uint64(3) {
			wantErr(t, "send", q.PostSend(verbs.SendWR{ID: i, Signaled: i == 2}), nil)
		}
		wantErr(t, "fourth send", q.PostSend(verbs.SendWR{}), verbs.ErrQueueFull)
		if wc := a.next(t); wc.ID != 2 || wc.Status != verbs.WCSuccess {
			t.Fatalf("completion %+v", wc)
		}
	}
}

// TestCQOverrun: a CQ that is too small breaks, and takes its QPs along.
func TestCQOverrun(t *testing.T) {
	a, b := newNode(t, 4096, 64, nil), newNode(t, 4096, 2, nil)
	qa, qb, other := a.qp(t), b.qp(t), b.qp(t)
	connect(t, a, b, qa, qb, 10, 20)
	modify(t, other, initAttr())
	src, dst := a.reg(t, 0), b.reg(t, remote)
	for i := range uint64(3) {
		postRecv(t, qb, i)
		post(t, qa, src, dst, 100, i)
	}
	wantEvent(t, b.dev, verbs.EventCQError, 0)
	for _, q := range []verbs.QP{qb, other} {
		eventually(t, "QP in ERR", func() bool { s, err := q.State(); return err == nil && s == verbs.StateErr })
	}
	var wc [4]verbs.WC
	_, err := b.cq.Poll(wc[:])
	wantErr(t, "poll", err, verbs.ErrCQOverrun)
}

func wantEvent(t *testing.T, d *Device, want verbs.EventType, qpn uint32) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), eventPatience)
	defer cancel()
	for {
		select {
		case e := <-d.Events():
			if e.Type == want && e.QPN == qpn {
				return
			}
		case <-ctx.Done():
			t.Fatalf("no event %d of QP %d", want, qpn)
		}
	}
}

// TestAccessErrorIsNoEvent: a refused write is told by completions only, so that
// a QP can be used again after it.
func TestAccessErrorIsNoEvent(t *testing.T) {
	a, b := newNode(t, 4096, 64, nil), newNode(t, 4096, 64, nil)
	qa, qb := a.qp(t), b.qp(t)
	connect(t, a, b, qa, qb, 10, 20)
	src, dst := a.reg(t, 0), b.reg(t, verbs.AccessLocalWrite)
	postRecv(t, qb, 1)
	post(t, qa, src, dst, 100, 2)
	if wc := a.next(t); wc.Status != verbs.WCRemAccessErr {
		t.Errorf("send ended with %s", wc.Status)
	}
	if wc := b.next(t); wc.Status != verbs.WCWRFlushErr {
		t.Errorf("receive ended with %s", wc.Status)
	}
	for _, d := range []*Device{a.dev, b.dev} {
		d.Emit(verbs.Event{Type: verbs.EventPortActive, Port: 1})
		if e := <-d.Events(); e.Type != verbs.EventPortActive {
			t.Errorf("event %+v", e)
		}
	}
}

// TestFailQPIsAnEvent: nothing else tells of it.
func TestFailQPIsAnEvent(t *testing.T) {
	a := newNode(t, 4096, 64, nil)
	q := a.qp(t)
	modify(t, q, initAttr())
	wantErr(t, "fail", a.dev.FailQP(q.Num()), nil)
	wantEvent(t, a.dev, verbs.EventQPFatal, q.Num())
}

// TestErrorCompletionsAreJunk: the fields that mean nothing look like anything.
func TestErrorCompletionsAreJunk(t *testing.T) {
	a := newNode(t, 4096, 128, nil)
	q := a.qp(t)
	modify(t, q, initAttr())
	for i := range uint64(64) {
		postRecv(t, q, i)
	}
	modify(t, q, verbs.QPAttr{State: verbs.StateErr})
	opcodes, lengths := map[verbs.WCOpcode]bool{}, map[uint32]bool{}
	for i := range uint64(64) {
		wc := a.next(t)
		if wc.ID != i || wc.Status != verbs.WCWRFlushErr || wc.QPN != q.Num() || wc.VendorErr == 0 {
			t.Fatalf("completion %+v", wc)
		}
		opcodes[wc.Opcode], lengths[wc.ByteLen] = true, true
	}
	if len(opcodes) < 32 || len(lengths) < 32 {
		t.Errorf("%d opcodes, %d lengths", len(opcodes), len(lengths))
	}
}

// TestSendQueueDrained: in SQD nothing new is begun.
func TestSendQueueDrained(t *testing.T) {
	a, b := newNode(t, 4096, 64, nil), newNode(t, 4096, 64, nil)
	qa, qb := a.qp(t), b.qp(t)
	connect(t, a, b, qa, qb, 10, 20)
	src, dst := a.reg(t, 0), b.reg(t, remote)
	postRecv(t, qb, 1)
	modify := func(s verbs.QPState) {
		if err := qa.Modify(verbs.QPAttr{State: s}, verbs.AttrState); err != nil {
			t.Fatal(err)
		}
	}
	modify(verbs.StateSQD)
	post(t, qa, src, dst, 100, 2)
	x := qa.(*qp)
	x.mu.Lock()
	if len(x.pending) != 1 || x.sending {
		t.Errorf("%d pending, sending %v", len(x.pending), x.sending)
	}
	x.mu.Unlock()
	modify(verbs.StateRTS)
	if wc := b.next(t); wc.Status != verbs.WCSuccess {
		t.Error(wc.Status)
	}
}

// TestLimits: what the attributes promise is the end.
func TestLimits(t *testing.T) {
	a := newNode(t, 4096, 64, nil)
	attr := a.dev.Attr()
	for _, depth := range []int{0, -1, attr.MaxCQE + 1} {
		_, err := a.dev.CreateCQ(depth, nil)
		wantErr(t, "CQ depth", err, verbs.ErrInvalid)
	}
	for _, c := range []verbs.QPCap{{MaxSendWR: attr.MaxQPWR + 1}, {MaxRecvWR: attr.MaxQPWR + 1}, {MaxSendSGE: attr.MaxSGE + 1}, {MaxRecvSGE: -1}} {
		_, err := a.pd.CreateQP(verbs.QPInitAttr{SendCQ: a.cq, RecvCQ: a.cq, Cap: c})
		wantErr(t, "QP", err, verbs.ErrInvalid)
	}
	_, err := a.pd.CreateQP(verbs.QPInitAttr{SendCQ: a.cq})
	wantErr(t, "QP without a receive CQ", err, verbs.ErrInvalid)
	other := newNode(t, 4096, 64, nil)
	_, err = a.pd.CreateQP(verbs.QPInitAttr{SendCQ: a.cq, RecvCQ: other.cq})
	wantErr(t, "QP with the CQ of another device", err, verbs.ErrInvalid)

	var pds []verbs.PD
	for len(pds) < attr.MaxPD-1 {
		pd, err := a.dev.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		pds = append(pds, pd)
	}
	_, err = a.dev.AllocPD()
	wantErr(t, "one PD more", err, verbs.ErrNoResource)
	for _, pd := range pds {
		mustClose(t, pd)
	}

	var qps []verbs.QP
	for range attr.MaxQP {
		q, err := a.pd.CreateQP(verbs.QPInitAttr{SendCQ: a.cq, RecvCQ: a.cq})
		if err != nil {
			t.Fatal(err)
		}
		qps = append(qps, q)
	}
	_, err = a.pd.CreateQP(verbs.QPInitAttr{SendCQ: a.cq, RecvCQ: a.cq})
	wantErr(t, "one QP more", err, verbs.ErrNoResource)
	seen := map[uint32]bool{}
	for _, q := range qps {
		if q.Num() < 2 || q.Num() > mask24 || seen[q.Num()] {
			t.Fatalf("QP number %d", q.Num())
		}
		seen[q.Num()] = true
		mustClose(t, q)
	}
}

func TestMessageTooLong(t *testing.T) {
	a, b := newNode(t, 4096, 64, nil), newNode(t, 4096, 64, nil)
	qa, qb := a.qp(t), b.qp(t)
	connect(t, a, b, qa, qb, 10, 20)
	src, dst := a.reg(t, 0), b.reg(t, remote)
	post(t, qa, src, dst, maxMsgSize+1, 1)
	if wc := a.next(t); wc.Status != verbs.WCLocLenErr {
		t.Error(wc.Status)
	}
}

// TestKeysAreNotReused: no key comes back within a turn of the generations.
func TestKeysAreNotReused(t *testing.T) {
	a := newNode(t, 4096, 64, nil)
	seen := map[uint32]bool{}
	for range 2000 {
		m, err := a.pd.RegMR(a.mem, 0, 4096, remote)
		if err != nil {
			t.Fatal(err)
		}
		if seen[m.RKey()] {
			t.Fatalf("rkey %#x again", m.RKey())
		}
		if m.LKey() == m.RKey() {
			t.Fatal("lkey and rkey agree: mixing them up would go unnoticed")
		}
		seen[m.RKey()] = true
		mustClose(t, m)
	}
	table := keyTable{next: mask24 - 1, mrs: map[uint32]*mr{}}
	first := table.add(&mr{})
	second := table.add(&mr{})
	if first>>8 != mask24 || second>>8 != 0 || second&0xff != 1 {
		t.Errorf("keys %#x, %#x around the end of the indexes", first, second)
	}
}
