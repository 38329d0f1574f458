package store

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"s3rdmafs/rc"
	"s3rdmafs/verbs"
)

// RDMA is what the store needs of an RDMA client; *rc.Client is one. When Get or
// Put return, the transfer has no more to do with the segment, unless the error
// wraps verbs.ErrUnsafe. A server that breaks the protocol may still write into
// the MR of an earlier Get while a session is kept.
type RDMA interface {
	Get(context.Context, rc.GetRequest) (rc.GetResult, error)
	Put(context.Context, rc.PutRequest) (rc.PutResult, error)
	// EligibleGet and EligiblePut say whether a transfer can be tried now, and
	// why not.
	EligibleGet(off, n int64) (ok bool, reason string)
	EligiblePut(rc.PutRequest) (ok bool, reason string)
	// MaxTransfer is the largest transfer the endpoint is known to take, bytes.
	MaxTransfer(rc.Op) int64
	// HTTPSucceeded tells that the request that failed with err was done by HTTP.
	HTTPSucceeded(err error)
}

var _ RDMA = (*rc.Client)(nil)

// Mode says when object bytes may go by RDMA.
type Mode int

const (
	ModeAuto    Mode = iota // RDMA where it is eligible, HTTP when it fails
	ModeOff                 // HTTP only
	ModeRequire             // HTTP only below and above the sizes of one transfer; else failure is an error
)

// ParseMode reads "auto", "off" or "require".
func ParseMode(s string) (Mode, error) {
	for m := ModeAuto; m <= ModeRequire; m++ {
		if s == m.String() {
			return m, nil
		}
	}
	return 0, fmt.Errorf("RDMA mode %q: want auto, require or off", s)
}

func (m Mode) String() string {
	switch m {
	case ModeAuto:
		return "auto"
	case ModeOff:
		return "off"
	case ModeRequire:
		return "require"
	}
	return fmt.Sprintf("Mode(%d)", int(m))
}

// RDMAPutLimit is the largest object or part that one RDMA transfer can store,
// in bytes; 0 when RDMA is not in use. Parts should not be larger while their
// number allows.
func (s *Store) RDMAPutLimit() int64 {
	if s.o.RDMA == nil || s.o.Mode == ModeOff {
		return 0
	}
	return min(s.o.RDMAChunkSize, s.o.RDMA.MaxTransfer(rc.OpPut))
}

// next says how a request goes on after an RDMA transfer.
type next int

const (
	nextDone  next = iota
	nextHTTP       // the same by HTTP
	nextRetry      // the same again after a pause
	nextLook       // it may have been stored
	nextFail
)

// afterRDMA judges the error of an RDMA transfer, and counts and logs a
// fallback. The error is nil with nextDone and nextHTTP.
func (s *Store) afterRDMA(ctx context.Context, c call, err error) (next, *Error) {
	if err == nil {
		return nextDone, nil
	}
	e := &Error{Op: c.op, Bucket: c.bucket, Key: c.key, Kind: ErrRDMA, Err: err}
	if errors.Is(err, verbs.ErrUnsafe) {
		// Nothing else may happen in this memory.
		return nextFail, e
	}
	if ctx.Err() != nil {
		return nextFail, withContextError(ctx, e)
	}
	var re *rc.Error
	if !errors.As(err, &re) {
		re = &rc.Error{Action: rc.ActionHTTP, Err: err}
	}
	e.Status, e.Code = re.Status, re.Code
	switch re.Action {
	case rc.ActionUnknown:
		return nextLook, e
	case rc.ActionFail:
		if re.Status != 0 {
			e.Kind = verdictOf(re.Status, re.Code).kind
		}
		return nextFail, e
	}
	if s.o.Mode == ModeRequire {
		if re.Status == http.StatusServiceUnavailable || re.Status == http.StatusTooManyRequests {
			return nextRetry, e
		}
		return nextFail, e
	}
	s.fellBack(c, fallbackReason(re), err, announced(re))
	return nextHTTP, nil
}

// toldPeer reports whether the peer of a GET that failed may know the rkey. READY
// and NEXT bring it; a refusal in order says that the peer has dropped it.
func toldPeer(err error) bool {
	var e *rc.Error
	if !errors.As(err, &e) {
		return true
	}
	refused := e.Status >= 400 && e.Status < 500 && e.Status != http.StatusRequestTimeout && e.Code != ""
	return e.Phase != rc.PhasePrepare && !(e.Phase == rc.PhaseReady && refused)
}

// fallbackReason groups failures for the counters.
func fallbackReason(e *rc.Error) string {
	switch {
	case e.Status != 0 && e.Code != "":
		return fmt.Sprintf("%s: %d %s", e.Phase, e.Status, e.Code)
	case e.Status != 0:
		return fmt.Sprintf("%s: %d", e.Phase, e.Status)
	}
	for _, cause := range []error{
		rc.ErrNotEligible, rc.ErrProtocol, rc.ErrCookie, rc.ErrCompletion, rc.ErrChecksum,
		rc.ErrGIDFamily, rc.ErrDeadline, rc.ErrSuspended, rc.ErrClosed, errNoETag,
	} {
		if errors.Is(e.Err, cause) {
			return fmt.Sprintf("%s: %v", e.Phase, cause)
		}
	}
	return e.Phase.String() + ": failed"
}

// announced is a failure that concerns the endpoint, not the transfer: a PREPARE
// answered as by a server without the protocol, or none sent for lack of
// something. The RDMA client itself says so, once.
func announced(e *rc.Error) bool {
	return errors.Is(e.Err, rc.ErrNotEligible) || e.Phase == rc.PhasePrepare && e.Status >= 300 && e.Status < 500 || e.Status == http.StatusNotImplemented
}

// fellBack counts a transfer that goes by HTTP, and says why once for every reason.
func (s *Store) fellBack(c call, reason string, err error, quiet bool) {
	first := s.count.fallback(reason)
	log := s.log.Debug
	if first && !quiet {
		log = s.log.Warn
	}
	log("object bytes go by HTTP: "+reason, "op", c.op, "bucket", c.bucket, "key", c.key, "err", err)
}
