package stack

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"

	"s3rdmafs/rc"
	"s3rdmafs/store"
	"s3rdmafs/verbs"
)

// rails is the store's RDMA side: a transfer goes over the rail with which its
// memory is registered, or over another one while that is out of use.
type rails struct {
	all []*rail
	log *slog.Logger
	// unregistered is set once memory could not be registered with a second rail.
	unregistered atomic.Bool
}

var _ store.RDMA = (*rails)(nil)

// choose returns the rail for a transfer of seg, and seg as that rail knows it.
func (rs *rails) choose(seg verbs.Segment, eligible func(*rail) bool) (*rail, verbs.Segment) {
	m, ok := seg.MR.(*railMR)
	if !ok {
		return rs.all[0], seg // which will say that it is not registered
	}
	own := seg
	own.MR = m.MR
	if len(rs.all) == 1 || eligible(m.rail) {
		return m.rail, own
	}
	for _, r := range rs.all {
		if r == m.rail || !eligible(r) {
			continue
		}
		mr, err := m.on(r)
		if err == nil {
			seg.MR = mr
			return r, seg
		}
		if !rs.unregistered.Swap(true) {
			rs.log.Warn("memory cannot move to another rail", "device", r.device.Name(), "err", err)
		}
	}
	return m.rail, own
}

// do runs a transfer, and again over another rail when its port goes out of use.
func (rs *rails) do(seg verbs.Segment, eligible func(*rail) bool, transfer func(*rc.Client, verbs.Segment) error) error {
	var last *rail
	var err error
	for range rs.all {
		r, s := rs.choose(seg, eligible)
		if r == last {
			return err
		}
		last = r
		err = transfer(r.client, s)
		var e *rc.Error
		if !errors.Is(err, rc.ErrSuspended) || errors.Is(err, verbs.ErrUnsafe) || !errors.As(err, &e) || e.Action != rc.ActionHTTP {
			return err
		}
	}
	return err
}

func (rs *rails) Get(ctx context.Context, q rc.GetRequest) (res rc.GetResult, err error) {
	eligible := func(r *rail) bool {
		ok, _ := r.client.EligibleGet(q.Offset, int64(len(q.Dst.Buf)))
		return ok
	}
	err = rs.do(q.Dst, eligible, func(c *rc.Client, s verbs.Segment) error {
		q.Dst = s
		res, err = c.Get(ctx, q)
		return err
	})
	return res, err
}

func (rs *rails) Put(ctx context.Context, q rc.PutRequest) (res rc.PutResult, err error) {
	eligible := func(r *rail) bool {
		ok, _ := r.client.EligiblePut(q)
		return ok
	}
	err = rs.do(q.Src, eligible, func(c *rc.Client, s verbs.Segment) error {
		q.Src = s
		res, err = c.Put(ctx, q)
		return err
	})
	return res, err
}

// any asks the rails until one says yes; the reasons are those of all.
func (rs *rails) any(eligible func(*rc.Client) (bool, string)) (bool, string) {
	var reasons []string
	for _, r := range rs.all {
		ok, reason := eligible(r.client)
		if ok {
			return true, ""
		}
		if len(reasons) == 0 || reasons[len(reasons)-1] != reason {
			reasons = append(reasons, reason)
		}
	}
	return false, strings.Join(reasons, "; ")
}

func (rs *rails) EligibleGet(off, n int64) (bool, string) {
	return rs.any(func(c *rc.Client) (bool, string) { return c.EligibleGet(off, n) })
}

func (rs *rails) EligiblePut(q rc.PutRequest) (bool, string) {
	return rs.any(func(c *rc.Client) (bool, string) { return c.EligiblePut(q) })
}

// MaxTransfer is what all rails can do.
func (rs *rails) MaxTransfer(op rc.Op) int64 {
	n := rs.all[0].client.MaxTransfer(op)
	for _, r := range rs.all[1:] {
		n = min(n, r.client.MaxTransfer(op))
	}
	return n
}

// HTTPSucceeded tells all rails, since it is about the endpoint.
func (rs *rails) HTTPSucceeded(err error) {
	for _, r := range rs.all {
		r.client.HTTPSucceeded(err)
	}
}
