package store

import (
	"s3rdmafs/rc"
	"s3rdmafs/verbs"
)

// transfer is one movement of object bytes about to start.
type transfer struct {
	call
	seg      verbs.Segment
	eligible func() (bool, string) // asks the RDMA client
	max      int64                 // largest RDMA transfer of the direction
}

// choose is the one place that decides between RDMA and HTTP. Reasons of
// transfers that could have gone by RDMA are counted. The error is of mode require.
func (s *Store) choose(t transfer) (rdma bool, err error) {
	n := int64(len(t.seg.Buf))
	switch {
	case s.o.RDMA == nil || s.o.Mode == ModeOff:
		return false, nil
	case n < s.o.RDMAMinSize:
		return false, nil
	case n > t.max:
		s.fellBack(t.call, "larger than one transfer", nil, true)
		return false, nil
	}
	ok, reason := false, "memory not registered"
	if t.seg.MR != nil {
		ok, reason = t.eligible()
	}
	switch {
	case ok:
		return true, nil
	case s.o.Mode == ModeRequire:
		return false, &Error{Op: t.op, Bucket: t.bucket, Key: t.key, Kind: ErrRDMA, Err: reasonError(reason)}
	}
	s.fellBack(t.call, reason, nil, true)
	return false, nil
}

// chooseGet decides for the n bytes of seg at off.
func (s *Store) chooseGet(c call, off int64, seg verbs.Segment) (bool, error) {
	t := transfer{call: c, seg: seg}
	if s.o.RDMA != nil {
		t.max = s.o.RDMA.MaxTransfer(rc.OpGet)
		t.eligible = func() (bool, string) { return s.o.RDMA.EligibleGet(off, int64(len(seg.Buf))) }
	}
	return s.choose(t)
}

func (s *Store) choosePut(c call, r rc.PutRequest) (bool, error) {
	t := transfer{call: c, seg: r.Src}
	if s.o.RDMA != nil {
		t.max = s.o.RDMA.MaxTransfer(rc.OpPut)
		t.eligible = func() (bool, string) { return s.o.RDMA.EligiblePut(r) }
	}
	return s.choose(t)
}

type reasonError string

func (r reasonError) Error() string { return string(r) }
