package verbs

import "testing"

// TestPSNsDoNotRepeat goes through a whole turn of the sequence.
func TestPSNsDoNotRepeat(t *testing.T) {
	s := newPSNSequence()
	seen := make([]uint64, 1<<24/64)
	for range 1<<24 - 1 {
		psn := s.next()
		if psn == 0 || psn > 0xffffff {
			t.Fatalf("PSN %#x", psn)
		}
		if seen[psn/64]&(1<<(psn%64)) != 0 {
			t.Fatalf("PSN %#x again", psn)
		}
		seen[psn/64] |= 1 << (psn % 64)
	}
}

// TestPSNsLookRandom: neighbours in the sequence have nothing in common, so
// that packets of one connection do not fit into the window of the next.
func TestPSNsLookRandom(t *testing.T) {
	s := newPSNSequence()
	last := s.next()
	near := 0
	for range 100000 {
		psn := s.next()
		if d := (psn - last) & 0xffffff; d < 1<<12 || d > 1<<24-1<<12 {
			near++
		}
		last = psn
	}
	// By chance it is 1 of 2048, 49 of them.
	if near > 200 {
		t.Errorf("%d of 100000 PSNs are close to the one before", near)
	}
}
