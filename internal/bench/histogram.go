package bench

import (
	"math/bits"
	"time"
)

// subBits sets the width of buckets: a quantile is off by less than 1/2^subBits.
const subBits = 6

// histogram counts durations in a fixed amount of memory. The zero value is ready.
type histogram struct {
	counts [(64 - subBits + 1) << subBits]uint64
	n      uint64
	max    time.Duration
}

// bucket is linear up to 2^subBits ns, then has 2^subBits steps an octave.
func bucket(d time.Duration) int {
	v := uint64(max(d, 0))
	shift := max(bits.Len64(v)-subBits-1, 0)
	return shift<<subBits + int(v>>shift)
}

// upper is the largest duration of a bucket.
func upper(i int) time.Duration {
	shift := max(i>>subBits-1, 0)
	return time.Duration((uint64(i-shift<<subBits)+1)<<shift - 1)
}

func (h *histogram) add(d time.Duration) {
	h.counts[bucket(d)]++
	h.n++
	h.max = max(h.max, d)
}

func (h *histogram) merge(o *histogram) {
	for i, c := range o.counts {
		h.counts[i] += c
	}
	h.n += o.n
	h.max = max(h.max, o.max)
}

// quantile is the duration that a share q of all did not exceed; 0 without any.
func (h *histogram) quantile(q float64) time.Duration {
	if h.n == 0 {
		return 0
	}
	want := uint64(q * float64(h.n))
	if float64(want) < q*float64(h.n) {
		want++
	}
	var seen uint64
	for i, c := range h.counts {
		if seen += c; c > 0 && seen >= want {
			return min(upper(i), h.max)
		}
	}
	return h.max
}
