package cache

import "math/bits"

// buddy gives out runs of units out of a slab. A run is aligned to the next
// power of two of its length; equally free neighbours merge.
type buddy struct {
	free  [][]uint64 // by order: bit i set means units [i<<order, (i+1)<<order) are free
	count []int      // by order: bits set
	has   uint32     // bit o set means count[o] > 0
}

func newBuddy(units int) buddy {
	orders := bits.Len(uint(units))
	b := buddy{free: make([][]uint64, orders), count: make([]int, orders)}
	for o := range b.free {
		b.free[o] = make([]uint64, (units>>o+1)/64+1)
	}
	b.release(0, units)
	return b
}

// orderOf is the order of the smallest power of two that holds n units.
func orderOf(n int) int { return bits.Len(uint(n - 1)) }

// alloc takes n units, lowest address first among the best fitting runs.
func (b *buddy) alloc(n int) (unit int, ok bool) {
	want := orderOf(n)
	if b.has>>want == 0 {
		return 0, false
	}
	o := want + bits.TrailingZeros32(b.has>>want)
	for w, word := range b.free[o] {
		if word != 0 {
			i := w*64 + bits.TrailingZeros64(word)
			b.clear(o, i)
			unit = i << o
			b.release(unit+n, 1<<o-n)
			return unit, true
		}
	}
	panic("cache: buddy counts are wrong")
}

// release gives n units from unit on back.
func (b *buddy) release(unit, n int) {
	for n > 0 {
		o := bits.Len(uint(n)) - 1
		if unit != 0 {
			o = min(o, bits.TrailingZeros(uint(unit)))
		}
		b.put(unit, o)
		unit += 1 << o
		n -= 1 << o
	}
}

func (b *buddy) put(unit, o int) {
	i := unit >> o
	for o+1 < len(b.free) && b.isFree(o, i^1) {
		b.clear(o, i^1)
		i >>= 1
		o++
	}
	b.free[o][i/64] |= 1 << (i % 64)
	b.count[o]++
	b.has |= 1 << o
}

func (b *buddy) isFree(o, i int) bool {
	return b.free[o][i/64]&(1<<(i%64)) != 0
}

func (b *buddy) clear(o, i int) {
	b.free[o][i/64] &^= 1 << (i % 64)
	if b.count[o]--; b.count[o] == 0 {
		b.has &^= 1 << o
	}
}
