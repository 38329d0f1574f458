package rc_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"s3rdmafs/internal/testdevice"
	"s3rdmafs/rc"
	"s3rdmafs/rc/rctest"
	"s3rdmafs/verbs"
	"s3rdmafs/verbs/shm"
)

// TestUnsafeIsTold: the queue pair of a failed, and of a good, transfer can be
// neither drained nor destroyed, so the caller must not use the memory again.
func TestUnsafeIsTold(t *testing.T) {
	testdevice.SoftwareOnly(t)
	for _, c := range []struct {
		name   string
		op     rc.Op
		wrong  bool
		action rc.Action
	}{
		{"failed GET", rc.OpGet, true, rc.ActionHTTP},
		{"good GET", rc.OpGet, false, rc.ActionHTTP},
		{"good PUT", rc.OpPut, false, rc.ActionUnknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			// Its device is never closed: the pool cannot be.
			dev, err := shm.Open(shm.Options{})
			if err != nil {
				t.Fatal(err)
			}
			plain, err := dev.AllocPD()
			if err != nil {
				t.Fatal(err)
			}
			pd := &stuckPD{PD: plain, stuck: new(atomic.Bool), made: make(chan verbs.QP, 8)}
			hooks := rctest.Hooks{Ready: func() { pd.stuck.Store(true) }}
			if c.wrong {
				hooks.Immediate = func(cookie uint32) uint32 { return cookie + 1 }
			}
			r := newRig(t, rigOptions{hooks: hooks})
			r.peer.Set("b/k", random(failSize))
			pool, err := verbs.NewPool(dev, verbs.PoolOptions{PD: pd, Access: verbs.AccessRemoteWrite})
			if err != nil {
				t.Fatal(err)
			}
			own := &fabricEnd{dev: dev, pd: plain, pool: pool, gid: testdevice.GID(t, dev)}
			r.seg = own.region(t, failSize)
			r.client = newClient(t, own, r.url, nil)
			err = r.transfer(t.Context(), c.op)
			if e, ok := err.(*rc.Error); !ok || e.Action != c.action || !errors.Is(err, verbs.ErrUnsafe) {
				t.Errorf("error %v, want %s and ErrUnsafe", err, c.action)
			}
			if c.wrong != errors.Is(err, rc.ErrCookie) {
				t.Errorf("error %v", err)
			}
			if n := r.peer.Seen("prepare"); n != 1 {
				t.Errorf("tried %d times", n)
			}
			if err := pool.Close(); !errors.Is(err, verbs.ErrBusy) {
				t.Errorf("close pool with a queue pair out: %v", err)
			}
			if err := (<-pd.made).Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
