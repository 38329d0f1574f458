package bench

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestQuantiles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Int64Range(0, math.MaxInt64), 1, 200).Draw(t, "values")
		if rapid.Bool().Draw(t, "short") {
			for i := range values {
				values[i] %= int64(time.Second)
			}
		}
		var h, half histogram
		for i, v := range values {
			if i%2 == 0 {
				h.add(time.Duration(v))
			} else {
				half.add(time.Duration(v))
			}
		}
		h.merge(&half)
		slices.Sort(values)
		if h.n != uint64(len(values)) || h.max != time.Duration(values[len(values)-1]) {
			t.Fatalf("n %d, max %d", h.n, h.max)
		}
		for _, q := range []float64{0.5, 0.9, 0.99, 1} {
			exact := values[int(math.Ceil(q*float64(len(values))))-1]
			got := int64(h.quantile(q))
			if got < exact || float64(got-exact) > float64(exact)/(1<<subBits) {
				t.Fatalf("quantile %v = %d, exactly %d", q, got, exact)
			}
		}
	})
}

func TestNoQuantileOfNothing(t *testing.T) {
	var h histogram
	if got := h.quantile(0.5); got != 0 {
		t.Errorf("= %v", got)
	}
}
