package rc

import (
	"errors"
	"fmt"
	"strings"

	"s3rdmafs/token"
)

// Op is the S3 direction of a transfer, seen from the client.
type Op = token.Op

const (
	OpGet = token.OpGet
	OpPut = token.OpPut
)

// Action is what the caller of a failed transfer has to do about the request.
type Action uint8

const (
	// ActionHTTP: nothing was stored and nothing is decided; do the request by HTTP.
	ActionHTTP Action = iota
	// ActionFail: the answer is authoritative, or the caller gave up itself; report it.
	ActionFail
	// ActionUnknown: a PUT that may or may not have been stored (F7). Look with
	// HEAD, or repeat it if that does no harm.
	ActionUnknown
)

func (a Action) String() string {
	switch a {
	case ActionHTTP:
		return "http"
	case ActionFail:
		return "fail"
	case ActionUnknown:
		return "unknown"
	}
	return fmt.Sprintf("Action(%d)", uint8(a))
}

// Phase is the part of a transfer in which it failed.
type Phase uint8

const (
	// PhasePrepare: up to and including the answer to PREPARE and the own QP's way to RTS.
	PhasePrepare Phase = iota
	// PhaseReady: READY or NEXT was refused, or not answered, without any data.
	PhaseReady
	// PhaseData: a work request failed, or its completion was wrong or missing.
	PhaseData
	// PhaseFinal: the bytes moved, but the answer says otherwise or is missing.
	PhaseFinal
)

func (p Phase) String() string {
	switch p {
	case PhasePrepare:
		return "prepare"
	case PhaseReady:
		return "ready"
	case PhaseData:
		return "data"
	case PhaseFinal:
		return "final"
	}
	return fmt.Sprintf("Phase(%d)", uint8(p))
}

// Error is a transfer that failed on the client's side. When it is returned the
// transfer's QP is drained and its memory free, unless it wraps verbs.ErrUnsafe.
type Error struct {
	Op      Op
	Phase   Phase
	Status  int    // of the answer that decided; 0 when there was none
	Code    string // S3 error code of that answer; "" when it had none
	Message string
	Action  Action
	Err     error // nil when the answer says it all
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "rdma %s: %s", e.Op, e.Phase)
	if e.Status != 0 {
		fmt.Fprintf(&b, ": status %d", e.Status)
	}
	if e.Code != "" {
		fmt.Fprintf(&b, " %s", e.Code)
	}
	if e.Message != "" {
		fmt.Fprintf(&b, " (%s)", e.Message)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

var (
	// ErrPrecondition: a condition of the request does not hold (412).
	ErrPrecondition = errors.New("precondition failed")
	// ErrNotEligible: the request cannot go by RDMA, by its nature or at present.
	ErrNotEligible = errors.New("not eligible for RDMA")
	// ErrProtocol: the peer's answer is not what the protocol says.
	ErrProtocol = errors.New("protocol violation")
	// ErrCookie: a completion carried the immediate of another transfer.
	ErrCookie = errors.New("completion belongs to another transfer")
	// ErrCompletion: a work request completed with an error.
	ErrCompletion = errors.New("work request failed")
	// ErrChecksum: the bytes that arrived are not those that were sent.
	ErrChecksum = errors.New("checksum mismatch")
	// ErrGIDFamily: the peer's address family has no GID on the own port.
	ErrGIDFamily = errors.New("no GID of the peer's address family")
	// ErrDeadline: the transfer took longer than its allowance.
	ErrDeadline = errors.New("transfer deadline exceeded")
	// ErrSuspended: the own port or device went out of use.
	ErrSuspended = errors.New("RDMA port out of use")
	// ErrClosed: the client or server is closed.
	ErrClosed = errors.New("rdma endpoint closed")
)
