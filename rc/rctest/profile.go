package rctest

import "net/http"

// Profile is how a peer behaves where the public servers differ.
type Profile struct {
	Name string
	// Body of successful answers.
	Body string
	// UpperHex writes PSN and cookie in upper case.
	UpperHex bool
	// OffsetRequired answers 400 to a PREPARE without offset.
	OffsetRequired bool
	// ReceiveInReady posts a PUT's receive in READY, after RTS, instead of in PREPARE.
	ReceiveInReady bool
	// EarlyPairing takes the QP to RTS in PREPARE; goes with the word "ep".
	EarlyPairing bool
	// StreamChunk, if not 0, splits a GET into plain writes of so many bytes and one
	// last WRITE WITH IMMEDIATE of no bytes.
	StreamChunk int
	// PastEnd is the status for a range that starts inside and ends past the object's
	// end; 200 shortens it.
	PastEnd int
	// MaxEnd, if not 0, is the highest end of a range; beyond is 400.
	MaxEnd int64
	// DropQuery ignores the target's query, as if it were not there.
	DropQuery bool
	// ETagOnGet, ETagOnPut: FINAL has the ETag.
	ETagOnGet, ETagOnPut bool
	// Staging headers on GET.
	StagingOnGet bool
	// NoQPN leaves x-amz-rdma-qpn out of the PREPARE answer.
	NoQPN bool
	// UnknownSession is the status of READY for a session that is not there.
	UnknownSession int
	// Cancel and CancelUnknown are the statuses of CANCEL.
	Cancel, CancelUnknown int
	// WireError is the status of a failed data phase, Timeout of one that took too long.
	WireError, Timeout int
	// LimitStatus answers a PREPARE over MaxSessions (0: no limit).
	LimitStatus, MaxSessions int
	// CloseConnections sends Connection: close on every answer.
	CloseConnections bool
	// ErrorXML adds an S3 error document to errors.
	ErrorXML bool
	// FinalCapabilities is the value of x-amz-rdma-capabilities on FINAL, and on all
	// answers with CapabilitiesAlways.
	FinalCapabilities  string
	CapabilitiesAlways bool
	// Checksum is the header in which FINAL carries a CRC-64/NVME; "" for none.
	Checksum string
}

// The public servers, as section 16 describes them.
var (
	VGW = Profile{
		Name: "VGW", Body: "OK", UpperHex: true, OffsetRequired: true, ReceiveInReady: true,
		PastEnd: http.StatusBadRequest, MaxEnd: 1<<31 - 1, DropQuery: true, ETagOnGet: true, ETagOnPut: true,
		StagingOnGet: true, UnknownSession: http.StatusNotFound, Cancel: http.StatusOK, CancelUnknown: http.StatusNotFound,
		WireError: http.StatusBadGateway, Timeout: http.StatusBadGateway, LimitStatus: http.StatusTooManyRequests,
		CloseConnections: true, ErrorXML: true,
	}
	ELB = Profile{
		Name: "ELB", ReceiveInReady: true, PastEnd: http.StatusRequestedRangeNotSatisfiable, DropQuery: true,
		ETagOnPut: true, StagingOnGet: true, UnknownSession: http.StatusConflict,
		Cancel: http.StatusNoContent, CancelUnknown: http.StatusNoContent, WireError: http.StatusInternalServerError,
		Timeout: http.StatusRequestTimeout, LimitStatus: http.StatusServiceUnavailable,
	}
	HIPRef = Profile{
		Name: "HIP-ref", ReceiveInReady: true, PastEnd: http.StatusRequestedRangeNotSatisfiable,
		StagingOnGet: true, UnknownSession: http.StatusConflict, Cancel: http.StatusNoContent,
		CancelUnknown: http.StatusNoContent, WireError: http.StatusInternalServerError,
		Timeout: http.StatusRequestTimeout, LimitStatus: http.StatusServiceUnavailable,
	}
	RGW = Profile{
		Name: "RGW", UpperHex: true, StreamChunk: 64 << 10, PastEnd: http.StatusOK, MaxEnd: 1<<31 - 1,
		ETagOnGet: true, ETagOnPut: true, UnknownSession: http.StatusNotFound, Cancel: http.StatusOK,
		CancelUnknown: http.StatusOK, WireError: http.StatusInternalServerError, Timeout: http.StatusRequestTimeout,
		LimitStatus: http.StatusServiceUnavailable, ErrorXML: true, Checksum: "X-Amz-Rdma-Checksum-Crc64nvme",
	}
	// EarlyPair is no public server: section 20's "ep" and "mp" and nothing else.
	EarlyPair = Profile{
		Name: "ep", EarlyPairing: true, PastEnd: http.StatusOK, ETagOnGet: true, ETagOnPut: true, NoQPN: true,
		UnknownSession: http.StatusNotFound, Cancel: http.StatusOK, CancelUnknown: http.StatusOK,
		WireError: http.StatusBadGateway, Timeout: http.StatusRequestTimeout, LimitStatus: http.StatusServiceUnavailable,
		FinalCapabilities: "mp, ep unheard-of", CapabilitiesAlways: true, ErrorXML: true,
	}
)

// Profiles are all of the above.
var Profiles = []Profile{VGW, ELB, HIPRef, RGW, EarlyPair}
