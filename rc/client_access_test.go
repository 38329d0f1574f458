package rc_test

import (
	"testing"
	"time"

	"s3rdmafs/rc"
	"s3rdmafs/rc/rctest"
)

// TestPutQPTakesNothing: the QP of a PUT has no rights (section 12.2), so a server
// that remembers an rkey of an earlier GET cannot use it.
func TestPutQPTakesNothing(t *testing.T) {
	var r *rig
	intruded := make(chan struct{}, 1)
	r = newRig(t, rigOptions{exec: time.Second, violations: true, hooks: rctest.Hooks{Intrude: func() (uint64, uint32) {
		intruded <- struct{}{}
		return r.seg.Addr() + 100_000, r.seg.MR.RKey()
	}}})
	plant(r.seg.Buf[100_000:200_000])
	// The PUT cannot be good: the refused write ends the QP.
	_, err := r.put(t.Context(), "k", 100_000)
	if e, ok := err.(*rc.Error); !ok || e.Phase == rc.PhasePrepare {
		t.Errorf("error %v", err)
	}
	if len(intruded) == 0 {
		t.Error("the server did not try")
	}
	r.quiet(3)
	checkCanary(t, r.seg.Buf[100_000:200_000])
}
