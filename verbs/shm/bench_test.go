package shm

import (
	"fmt"
	"testing"

	"s3rdmafs/verbs"
)

// BenchmarkWrite measures one RDMA WRITE WITH IMM at a time, from post to the
// completions on both sides.
func BenchmarkWrite(b *testing.B) {
	for _, size := range []int{0, 4 << 10, 64 << 10, 1 << 20, 16 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			x, y := newNode(b, 256<<20, 64, nil), newNode(b, 256<<20, 64, nil)
			qx, qy := x.qp(b), y.qp(b)
			connect(b, x, y, qx, qy, 7, 8)
			src, dst := x.reg(b, 0), y.reg(b, remote)
			for i := range src.Bytes() {
				src.Bytes()[i] = byte(i)
				dst.Bytes()[i] = 1
			}
			off := uint64(0)
			b.SetBytes(int64(size))
			for b.Loop() {
				if err := qy.PostRecv(verbs.RecvWR{}); err != nil {
					b.Fatal(err)
				}
				wr := verbs.SendWR{Opcode: verbs.OpWriteWithImm, RemoteAddr: dst.Addr() + off, RKey: dst.RKey(), Signaled: true,
					SGEs: []verbs.SGE{{Addr: src.Addr() + off, Length: uint32(size), LKey: src.LKey()}}}
				if err := qx.PostSend(wr); err != nil {
					b.Fatal(err)
				}
				if wc := y.next(b); wc.Status != verbs.WCSuccess {
					b.Fatal(wc.Status)
				}
				if wc := x.next(b); wc.Status != verbs.WCSuccess {
					b.Fatal(wc.Status)
				}
				if off += uint64(size); off+uint64(size) > 256<<20 {
					off = 0
				}
			}
		})
	}
}

// BenchmarkParallel measures QPs that each write 1 MiB at a time, 4 in flight.
func BenchmarkParallel(b *testing.B) {
	const size = 1 << 20
	for _, qps := range []int{1, 2, 4} {
		b.Run(fmt.Sprintf("%dQPs", qps), func(b *testing.B) {
			x, y := newNode(b, 64<<20, 1024, nil), newNode(b, 64<<20, 1024, nil)
			src, dst := x.reg(b, 0), y.reg(b, remote)
			for i := range src.Bytes() {
				src.Bytes()[i] = byte(i)
				dst.Bytes()[i] = 1
			}
			write := func(q verbs.QP, i int) {
				off := uint64(i) * size
				if err := q.PostSend(verbs.SendWR{ID: uint64(i), RemoteAddr: dst.Addr() + off, RKey: dst.RKey(), Signaled: true,
					SGEs: []verbs.SGE{{Addr: src.Addr() + off, Length: size, LKey: src.LKey()}}}); err != nil {
					b.Fatal(err)
				}
			}
			senders := map[uint32]verbs.QP{}
			for i := range qps {
				qx, qy := x.qp(b), y.qp(b)
				connect(b, x, y, qx, qy, uint32(7+i), uint32(8+i))
				senders[qx.Num()] = qx
				for k := range 4 {
					write(qx, 4*i+k)
				}
			}
			b.SetBytes(size)
			for b.Loop() {
				wc := x.next(b)
				if wc.Status != verbs.WCSuccess {
					b.Fatal(wc.Status)
				}
				write(senders[wc.QPN], int(wc.ID))
			}
		})
	}
}
