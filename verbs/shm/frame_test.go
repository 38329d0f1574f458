package shm

import (
	"bytes"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"s3rdmafs/verbs"
)

func anyWrite(t *rapid.T) (*writeFrame, int) {
	n := rapid.IntRange(0, maxSGE).Draw(t, "nsge")
	w := &writeFrame{
		HasImm:     rapid.Bool().Draw(t, "hasImm"),
		MTU:        verbs.MTU(rapid.IntRange(1, 5).Draw(t, "mtu")),
		SrcQPN:     rapid.Uint32Range(0, mask24).Draw(t, "src"),
		DstQPN:     rapid.Uint32Range(0, mask24).Draw(t, "dst"),
		PSN:        rapid.Uint32Range(0, mask24).Draw(t, "psn"),
		Slot:       rapid.Uint32Range(0, maxQP-1).Draw(t, "slot"),
		Epoch:      rapid.Uint64().Draw(t, "epoch"),
		RemoteAddr: rapid.Uint64().Draw(t, "addr"),
		RKey:       rapid.Uint32().Draw(t, "rkey"),
		Imm:        rapid.Uint32().Draw(t, "imm"),
		SGEs:       make([]frameSGE, n),
	}
	fds := 0
	for i := range w.SGEs {
		w.SGEs[i] = frameSGE{Mem: rapid.Uint64().Draw(t, "mem"), Off: rapid.Uint64().Draw(t, "off"),
			Length: rapid.Uint32Range(1, maxMsgSize/maxSGE).Draw(t, "length")}
		if rapid.Bool().Draw(t, "fd") {
			fds++
			w.SGEs[i].FD = uint32(fds)
		}
	}
	return w, fds
}

func TestFrameRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, fds := anyWrite(t)
		b := w.append(nil)
		if len(b) > maxFrameSize {
			t.Fatalf("frame of %d bytes", len(b))
		}
		got, err := parseWrite(b, fds)
		if err != nil || !reflect.DeepEqual(got, w) {
			t.Fatalf("got %+v, %v, want %+v", got, err, w)
		}
		r := replyFrame{Kind: replyKind(rapid.IntRange(1, 5).Draw(t, "kind")), QPN: w.SrcQPN, PSN: w.PSN, Epoch: w.Epoch,
			Code: rapid.Uint64Range(1, 21).Draw(t, "code")}
		if got, err := parseReply(r.append(nil)); err != nil || got != r {
			t.Fatalf("got %+v, %v, want %+v", got, err, r)
		}
		f := forgetFrame{Mem: w.Epoch}
		if got, err := parseForget(f.append(nil)); err != nil || got != f {
			t.Fatalf("got %+v, %v, want %+v", got, err, f)
		}
		h := helloFrame{GID: verbs.GID{1: byte(w.PSN)}}
		if got, err := parseHello(h.append(nil)); err != nil || got != h {
			t.Fatalf("got %+v, %v, want %+v", got, err, h)
		}
	})
}

func TestFrameRefused(t *testing.T) {
	good := writeFrame{MTU: verbs.MTU4096, SGEs: []frameSGE{{Mem: 1, Length: 10, FD: 1}, {Mem: 2, Length: 10, FD: 2}}}
	for name, c := range map[string]struct {
		bend func(*writeFrame)
		fds  int
	}{
		"MTU 0":             {func(w *writeFrame) { w.MTU = 0 }, 2},
		"MTU 6":             {func(w *writeFrame) { w.MTU = 6 }, 2},
		"QP number":         {func(w *writeFrame) { w.DstQPN = 1 << 24 }, 2},
		"PSN":               {func(w *writeFrame) { w.PSN = 1 << 24 }, 2},
		"slot":              {func(w *writeFrame) { w.Slot = maxQP }, 2},
		"empty SGE":         {func(w *writeFrame) { w.SGEs[1].Length = 0 }, 2},
		"FD twice":          {func(w *writeFrame) { w.SGEs[1].FD = 1 }, 2},
		"FD missing":        {func(*writeFrame) {}, 1},
		"FD unused":         {func(*writeFrame) {}, 3},
		"FD out of range":   {func(w *writeFrame) { w.SGEs[1].FD = 1 << 31 }, 2},
		"too many SGEs":     {func(w *writeFrame) { w.SGEs = make([]frameSGE, maxSGE+1) }, 0},
		"too many bytes":    {func(w *writeFrame) { w.SGEs[0].Length = maxMsgSize }, 2},
		"length overflows":  {func(w *writeFrame) { w.SGEs[0].Length, w.SGEs[1].Length = 1<<32-1, 1<<32-1 }, 2},
		"a byte at the end": {nil, 2},
	} {
		t.Run(name, func(t *testing.T) {
			w := good
			w.SGEs = append([]frameSGE(nil), good.SGEs...)
			if c.bend != nil {
				c.bend(&w)
			}
			b := w.append(nil)
			if c.bend == nil {
				b = append(b, 0)
			}
			if got, err := parseWrite(b, c.fds); err == nil {
				t.Errorf("accepted %+v", got)
			}
		})
	}
}

func FuzzFrames(f *testing.F) {
	w := writeFrame{MTU: verbs.MTU1024, HasImm: true, SGEs: []frameSGE{{Mem: 1, Length: 10, FD: 1}}}
	f.Add(w.append(nil), 1)
	// More descriptors than a frame may have, one of the last of them used.
	w.SGEs[0].FD = maxFrameFDs + 3
	f.Add(w.append(nil), maxFrameFDs+4)
	f.Add(replyFrame{Kind: replyNAK, Code: uint64(verbs.WCRemAccessErr)}.append(nil), 0)
	f.Add(forgetFrame{Mem: 3}.append(nil), 0)
	f.Add(helloFrame{}.append(nil), 0)
	f.Fuzz(func(t *testing.T, b []byte, nfds int) {
		nfds = int(uint(nfds) % (2 * maxFrameFDs))
		if w, err := parseWrite(b, nfds); err == nil {
			if !bytes.Equal(w.append(nil), b) {
				t.Errorf("write %+v does not give its bytes back", w)
			}
			if w.length() > maxMsgSize {
				t.Errorf("write of %d bytes", w.length())
			}
		}
		if r, err := parseReply(b); err == nil && (r.Kind == replyNAK && r.Code == 0 || r.QPN > mask24) {
			t.Errorf("reply %+v", r)
		}
		if m, err := parseForget(b); err == nil && len(m.append(nil)) != len(b) {
			t.Errorf("forget %+v", m)
		}
		if h, err := parseHello(b); err == nil && len(h.append(nil)) != len(b) {
			t.Errorf("hello %+v", h)
		}
	})
}
