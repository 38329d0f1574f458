package shm

import (
	"math/rand/v2"
	"sync"
	"time"

	"s3rdmafs/verbs"
)

// Faults makes a device misbehave within the rules of RC. Everything random
// comes from Seed. The fields must not change once the device is open.
type Faults struct {
	Seed uint64
	// Drop is the probability that a request or an ACK is lost.
	Drop float64
	// Delay is the longest time that a request waits before it is carried out.
	Delay time.Duration
	// Late is the probability that a request arrives a second time, up to
	// LateBy afterwards.
	Late   float64
	LateBy time.Duration
	// Fail is the probability that a send WR ends with FailStatus.
	Fail       float64
	FailStatus verbs.WCStatus
	// Piece, if not 0, is the size in bytes of the pieces in which data lands,
	// in random order.
	Piece int
	// Hook, if not nil, is called at each Point of each WRITE, without locks
	// held except at PointPiece. It may block, and decides what becomes of the
	// WRITE.
	Hook func(Point, Write) Verdict

	once sync.Once
	mu   sync.Mutex
	rng  *rand.Rand
}

// Point is a moment in the life of a WRITE.
type Point uint8

const (
	// PointSend: the requester is about to send. Drop and Status count.
	PointSend Point = iota
	// PointReceived: the responder has the request and checked nothing but the
	// peer and the PSN. Drop and Status count.
	PointReceived
	// PointChecked: keys, rights, bounds and receive were found good. Drop and
	// Status count.
	PointChecked
	// PointPiece: in front of each piece, while the copy holds its rights to the
	// region: MR.Close and leaving RTR/RTS wait. The verdict is ignored.
	PointPiece
	// PointCopied: all bytes landed, nothing was completed. Drop and Status count.
	PointCopied
	// PointAck: the responder completed and is about to acknowledge. Drop counts.
	PointAck
)

// Write describes a WRITE to a Hook.
type Write struct {
	SrcQPN, DstQPN uint32
	PSN            uint32
	Length         uint64
	Imm            uint32
	HasImm         bool
	// Offset is that of the piece in the message, at PointPiece.
	Offset uint64
}

// Verdict of a Hook. The zero Verdict lets the WRITE pass.
type Verdict struct {
	// Drop loses the request, or the answer at PointAck, as a lossy wire does.
	Drop bool
	// Status, if not WCSuccess, makes the WRITE fail with that status.
	Status verbs.WCStatus
}

func (w *writeFrame) describe() Write {
	return Write{SrcQPN: w.SrcQPN, DstQPN: w.DstQPN, PSN: w.PSN, Length: w.length(), Imm: w.Imm, HasImm: w.HasImm}
}

func (f *Faults) hook(p Point, w *writeFrame) Verdict {
	if f == nil {
		return Verdict{}
	}
	var v Verdict
	switch p {
	case PointSend:
		if f.chance(f.Fail) {
			v.Status = f.FailStatus
		}
		v.Drop = f.chance(f.Drop)
	case PointReceived:
		if f.Delay > 0 {
			time.Sleep(f.duration(f.Delay))
		}
	case PointAck:
		v.Drop = f.chance(f.Drop)
	}
	if f.Hook != nil {
		h := f.Hook(p, w.describe())
		v.Drop = v.Drop || h.Drop
		if h.Status != verbs.WCSuccess {
			v.Status = h.Status
		}
	}
	return v
}

func (f *Faults) atPiece(w *writeFrame, off uint64) {
	if f != nil && f.Hook != nil {
		d := w.describe()
		d.Offset = off
		f.Hook(PointPiece, d)
	}
}

// late returns after which time a second copy of a request arrives, if any.
func (f *Faults) late() (time.Duration, bool) {
	if f == nil || !f.chance(f.Late) {
		return 0, false
	}
	return f.duration(f.LateBy), true
}

// pieces cuts n bytes into [start, end) pieces in the order they are to land.
func (f *Faults) pieces(n uint64) [][2]uint64 {
	size := uint64(pieceSize)
	if f != nil && f.Piece > 0 {
		size = uint64(f.Piece)
	}
	all := make([][2]uint64, 0, (n+size-1)/size)
	for off := uint64(0); off < n; off += size {
		all = append(all, [2]uint64{off, min(off+size, n)})
	}
	if f != nil && f.Piece > 0 {
		f.random(func(r *rand.Rand) {
			r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		})
	}
	return all
}

func (f *Faults) chance(p float64) bool {
	if p <= 0 {
		return false
	}
	hit := false
	f.random(func(r *rand.Rand) { hit = r.Float64() < p })
	return hit
}

func (f *Faults) duration(most time.Duration) time.Duration {
	if most <= 0 {
		return 0
	}
	var d time.Duration
	f.random(func(r *rand.Rand) { d = time.Duration(r.Int64N(int64(most) + 1)) })
	return d
}

func (f *Faults) random(use func(*rand.Rand)) {
	f.once.Do(func() { f.rng = rand.New(rand.NewPCG(f.Seed, 0x73686d)) })
	f.mu.Lock()
	defer f.mu.Unlock()
	use(f.rng)
}
