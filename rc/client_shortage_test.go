package rc_test

import (
	"errors"
	"testing"
	"time"

	"s3rdmafs/rc"
	"s3rdmafs/token"
	"s3rdmafs/verbs"
)

func smallPool(t *testing.T, e *fabricEnd, qps int) *verbs.Pool {
	t.Helper()
	pool, err := verbs.NewPool(e.dev, verbs.PoolOptions{
		PD: e.pd, Port: 1, MaxQPs: qps, Access: verbs.AccessRemoteWrite,
		Cap: verbs.QPCap{MaxSendWR: 2, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pool.Close(); err != nil {
			t.Errorf("close pool: %v", err)
		}
	})
	return pool
}

// TestNoQueuePairLeft: what the own side lacks is not held against the endpoint.
func TestNoQueuePairLeft(t *testing.T) {
	d := newDuo(t, duoOptions{})
	pool := smallPool(t, d.own, 1)
	conn, err := pool.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for what, allowance := range map[string]time.Duration{"of the pool": clientPatience, "of the transfer": 200 * time.Millisecond} {
		c := d.client(func(o *rc.ClientOptions) {
			o.Pool, o.NoKeep = pool, true
			o.Timeouts.Transfer = allowance
		})
		wantError(t, d.put(c, "k", 1000), rc.ActionHTTP, rc.PhasePrepare)
		if ok, reason := c.EligibleGet(0, 1000); !ok {
			t.Errorf("time %s: not usable afterwards: %s", what, reason)
		}
	}
	if n := d.count(token.PathPrepare); n != 0 {
		t.Errorf("%d PREPAREs", n)
	}
	if err := conn.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestIdleSessionGivesItsQueuePair when another capacity is needed.
func TestIdleSessionGivesItsQueuePair(t *testing.T) {
	d := newDuo(t, duoOptions{})
	c := d.client(func(o *rc.ClientOptions) { o.Pool = smallPool(t, d.own, 1) })
	defer c.Close()
	d.warm(c)
	for _, n := range []int{1 << 20, 2 << 20, 4 << 20} {
		if err := d.put(c, "k", n); err != nil {
			t.Fatal(err)
		}
	}
	if s := c.Stats(); s.KeptOpened != 3 || s.Kept != 1 {
		t.Errorf("stats %+v", s)
	}
}

// TestKeptCapacityRefused: the size rounded up is too large for the server, the
// size itself is not.
func TestKeptCapacityRefused(t *testing.T) {
	d := newDuo(t, duoOptions{server: func(o *rc.ServerOptions) { o.MaxTransfer = 5 << 20 }})
	c := d.client(nil)
	d.warm(c)
	for _, n := range []int{4<<20 + 1, 5 << 20, 5 << 20, 4<<20 + 1} {
		if err := d.put(c, "k", n); err != nil {
			t.Fatal(err)
		}
	}
	if s := c.Stats(); s.KeptOpened != 2 || s.KeptTransfers != 4 || s.PutErrors != 0 {
		t.Errorf("stats %+v", s)
	}
	if n := d.count(token.PathPrepare); n != 4 {
		t.Errorf("%d PREPAREs, want the probe, one refused, and two", n)
	}
	err := d.put(c, "k", 5<<20+1)
	if e := wantError(t, err, rc.ActionHTTP, rc.PhasePrepare); e.Status != 413 || errors.Is(err, rc.ErrNotEligible) {
		t.Errorf("error %v", err)
	}
	if most := c.MaxTransfer(rc.OpPut); most > 5<<20 {
		t.Errorf("largest PUT afterwards %d", most)
	}
}
