package rc_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"s3rdmafs/internal/testdevice"
	"s3rdmafs/rc"
	"s3rdmafs/token"
	"s3rdmafs/verbs"
	"s3rdmafs/verbs/shm"
)

// stuckPD makes QPs that can be neither stopped nor destroyed while stuck.
type stuckPD struct {
	verbs.PD
	stuck *atomic.Bool
	made  chan verbs.QP
}

var errStuck = errors.New("adapter does not answer")

type stuckQP struct {
	verbs.QP
	stuck *atomic.Bool
}

func (pd *stuckPD) CreateQP(init verbs.QPInitAttr) (verbs.QP, error) {
	qp, err := pd.PD.CreateQP(init)
	if err != nil {
		return nil, err
	}
	pd.made <- qp
	return &stuckQP{QP: qp, stuck: pd.stuck}, nil
}

func (qp *stuckQP) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	if qp.stuck.Load() && mask&verbs.AttrState != 0 && (attr.State == verbs.StateErr || attr.State == verbs.StateReset) {
		return errStuck
	}
	return qp.QP.Modify(attr, mask)
}

func (qp *stuckQP) Close() error {
	if qp.stuck.Load() {
		return errStuck
	}
	return qp.QP.Close()
}

// Memory that a QP may still write into is never freed or used again.
func TestServerQuarantine(t *testing.T) {
	testdevice.SoftwareOnly(t)
	dev, err := shm.Open(shm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	plain, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	pd := &stuckPD{PD: plain, stuck: new(atomic.Bool), made: make(chan verbs.QP, 8)}
	pool, err := verbs.NewPool(dev, verbs.PoolOptions{PD: pd, Access: verbs.AccessRemoteWrite})
	if err != nil {
		t.Fatal(err)
	}
	gids, err := dev.GIDs(1)
	if err != nil {
		t.Fatal(err)
	}
	srv, err := rc.NewServer(rc.ServerOptions{Pool: pool, PD: pd, GID: gids[0].GID, Objects: newMemObjects(), StagingBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	request := func(h map[string][]string) rc.Request {
		return rc.Request{Header: h, Authenticate: func() (rc.Principal, error) { return rc.Principal{ID: "alice"}, nil }}
	}
	prepare := token.PrepareRequest{
		Token: token.Token{Transport: token.TransportRC, QPNum: 77, GID: gids[0].GID, Port: 1},
		PSN:   1, Cookie: 1, Op: rc.OpPut, Target: token.Target{Bucket: "b", Key: "k"}, Size: 1 << 20,
	}
	resp := srv.Prepare(t.Context(), request(prepare.Header()))
	if resp.Status != 200 {
		t.Fatalf("PREPARE: %d %s", resp.Status, resp.Body)
	}
	pd.stuck.Store(true)
	cancel := token.CancelRequest{Session: resp.Header.Get(token.HeaderSession), Cookie: 1}
	if resp := srv.Cancel(t.Context(), request(cancel.Header())); resp.Status != 200 {
		t.Fatalf("CANCEL: %d", resp.Status)
	}
	if st := srv.Stats(); st.Sessions != 0 || st.StagingInUse != 0 || st.Quarantined != 1<<20 || st.StagingBytes != 1<<20 {
		t.Errorf("%+v", st)
	}
	pd.stuck.Store(false)
	prepare.Size = 1
	if resp := srv.Prepare(t.Context(), request(prepare.Header())); resp.Status != 503 {
		t.Errorf("PREPARE with all memory quarantined: %d", resp.Status)
	}
	if err := srv.Close(context.Background()); !errors.Is(err, verbs.ErrUnsafe) {
		t.Errorf("Close: %v", err)
	}
	if err := pool.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("close pool with a QP out: %v", err)
	}
	if err := (<-pd.made).Close(); err != nil {
		t.Error(err)
	}
	if err := plain.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("quarantined memory is not registered any more: %v", err)
	}
}
