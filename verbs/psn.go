package verbs

import (
	"math/rand/v2"
	"sync/atomic"
)

// psnSequence gives out the numbers 1 … 2^24-1 in an order that looks random and
// repeats only after all of them. So no QP number meets the same PSN twice within
// the 60 seconds in which stray packets of an old connection may still arrive,
// however QPs are reused, and nothing needs to be remembered.
type psnSequence struct {
	counter atomic.Uint32
	keys    [4]uint32
}

// psns is shared by all pools of the process, since a device may give the
// number of a destroyed QP to another pool.
var psns = newPSNSequence()

func newPSNSequence() *psnSequence {
	s := &psnSequence{}
	for i := range s.keys {
		s.keys[i] = rand.Uint32()
	}
	s.counter.Store(rand.Uint32())
	return s
}

func (s *psnSequence) next() uint32 {
	for {
		if psn := s.permute(s.counter.Add(1) & 0xffffff); psn != 0 {
			return psn
		}
	}
}

// permute is a Feistel network over 24 bits, which makes it a permutation
// whatever the round function is.
func (s *psnSequence) permute(x uint32) uint32 {
	l, r := x>>12, x&0xfff
	for _, key := range s.keys {
		h := (r + key) * 0x9e3779b1
		h ^= h >> 15
		h *= 0x85ebca77
		l, r = r, l^h>>20
	}
	return l<<12 | r
}
