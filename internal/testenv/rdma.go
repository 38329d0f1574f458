package testenv

import (
	"context"
	"net/url"
	"testing"

	"s3rdmafs/rc"
	"s3rdmafs/token"
	"s3rdmafs/verbs"
	"s3rdmafs/verbs/shm"
)

// RDMA is a client's end of the software device, in the test's process. It is
// closed with the test, which fails if something of it is still in use.
type RDMA struct {
	Device verbs.Device
	PD     verbs.PD
	Pool   *verbs.Pool
	GID    verbs.GID

	t testing.TB
}

// clientQPs is how many queue pairs a test's client may have.
const clientQPs = 64

// NewRDMA opens a software device.
func NewRDMA(t testing.TB) *RDMA {
	t.Helper()
	dev, err := shm.Open(shm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	gids, err := dev.GIDs(1)
	if err != nil || len(gids) == 0 {
		t.Fatalf("software device: %d GIDs, %v", len(gids), err)
	}
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	pool, err := verbs.NewPool(dev, verbs.PoolOptions{PD: pd, MaxQPs: clientQPs, Access: verbs.AccessRemoteWrite})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, close := range []func() error{pool.Close, pd.Close, dev.Close} {
			if err := close(); err != nil {
				t.Errorf("software device of the client: %v", err)
			}
		}
	})
	return &RDMA{Device: dev, PD: pd, Pool: pool, GID: gids[0].GID, t: t}
}

// Segment returns n bytes of registered memory, filled from data.
func (r *RDMA) Segment(n int, data []byte) verbs.Segment {
	r.t.Helper()
	mem, err := verbs.NewMemory("testenv", max(n, 1))
	if err != nil {
		r.t.Fatal(err)
	}
	mr, err := r.PD.RegMR(mem, 0, len(mem.Bytes()), verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := mr.Close(); err != nil {
			r.t.Errorf("memory of the client: %v", err)
		}
		if err := mem.Close(); err != nil {
			r.t.Errorf("memory of the client: %v", err)
		}
	})
	copy(mr.Bytes(), data)
	return verbs.Segment{Buf: mr.Bytes()[:n], MR: mr}
}

// Client returns an RC client of e with the given credentials; edit, which may
// be nil, changes its options. It is closed with the test.
func (r *RDMA) Client(e *Env, accessKey, secretKey string, edit func(*rc.ClientOptions)) *rc.Client {
	r.t.Helper()
	u, err := url.Parse(e.Endpoint)
	if err != nil {
		r.t.Fatal(err)
	}
	o := rc.ClientOptions{
		Endpoint: u,
		Region:   e.Region,
		Credentials: func(context.Context) (token.Credentials, error) {
			return token.Credentials{AccessKey: accessKey, SecretKey: secretKey}, nil
		},
		Pool: r.Pool,
		GID:  r.GID,
	}
	if edit != nil {
		edit(&o)
	}
	c, err := rc.NewClient(o)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(c.Close)
	return c
}
