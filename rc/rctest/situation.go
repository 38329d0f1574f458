package rctest

import "net/http"

// Situation is a row of the table of section 10.1, or of section 6 or 9, in which
// the servers answer differently.
type Situation string

// The situations. PREPARE's come first, then READY's and CANCEL's.
const (
	PrepareNoProtocol    Situation = "PREPARE: protocol header missing"
	PrepareOtherProtocol Situation = "PREPARE: other protocol value"
	NoProtocol           Situation = "READY/CANCEL: protocol missing"
	OtherProtocol        Situation = "READY/CANCEL: other protocol value"
	Anonymous            Situation = "no signature"
	UnknownKey           Situation = "unknown access key"
	OtherScope           Situation = "other region or service"
	UnsignedHeader       Situation = "unsigned x-amz-rdma header"
	NoPayloadHash        Situation = "payload hash missing"
	OtherPayloadHash     Situation = "payload hash of other bytes"
	UnsignedPayload      Situation = "UNSIGNED-PAYLOAD"
	Skewed               Situation = "old date"
	BadSignature         Situation = "signature bad"
	Malformed            Situation = "malformed header"
	SizeZero             Situation = "size 0"
	SizeOver2G           Situation = "size > 2^31-1"
	SizeOverBuffer       Situation = "size > server's buffer"
	EndOver2G            Situation = "offset + size > 2^31-1"
	Denied               Situation = "access denied"
	NoBucket             Situation = "no such bucket"
	NoKey                Situation = "no such key"
	RangeStart           Situation = "range starts at or past the end"
	RangeEnd             Situation = "range starts inside, ends past the end"
	BadQuery             Situation = "query refused"
	UnsupportedQuery     Situation = "query not supported"
	NotServable          Situation = "object cannot be served"
	Limit                Situation = "session/QP/memory limit"
	ShuttingDown         Situation = "shutting down"
	Off                  Situation = "RC switched off"

	UnknownSession Situation = "READY: unknown/expired session"
	ForeignReady   Situation = "READY of another principal"
	SecondReady    Situation = "READY: second one while running"
	OtherCookie    Situation = "READY: cookie differs"
	NoQPN          Situation = "READY without QP number"
	NoBuffer       Situation = "READY: buffer headers missing"
	ZeroBuffer     Situation = "READY: buffer zero"
	ConnectFailed  Situation = "RTR/RTS failed"
	PeerBusy       Situation = "client did not answer / RNR exhausted"
	Timeout        Situation = "data phase timed out"
	WireError      Situation = "immediate/length mismatch, wire error"
	StoreFailed    Situation = "storing failed"

	Canceled      Situation = "CANCEL"
	CancelUnknown Situation = "CANCEL of an unknown session"
	ForeignCancel Situation = "CANCEL of another principal"
	UnknownPath   Situation = "unknown path below the prefix"
)

// Answer is how a server answers in a situation.
type Answer struct {
	Status int
	Code   string // S3 error code, sent by servers with ErrorXML
	Marker bool   // with the header of section 10.2
	// Ends: READY's session is gone; otherwise the answer leaves it as it is.
	Ends bool
	// Rearms: the session's QP goes back to INIT, and READY may come again.
	Rearms bool
}

// Answers are those of one server. A situation that is missing is none for it:
// the request goes on.
type Answers map[Situation]Answer

func unsupported() Answer {
	return Answer{Status: http.StatusNotImplemented, Code: "NotImplemented", Marker: true}
}

func refuse(status int, code string) Answer { return Answer{Status: status, Code: code} }

func end(status int, code string) Answer { return Answer{Status: status, Code: code, Ends: true} }
