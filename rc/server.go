package rc

import (
	"log/slog"
	"net/http"
	"time"

	"s3rdmafs/token"
	"s3rdmafs/verbs"
)

// ServerOptions configures a Server. Pool, PD, GID and Objects are required.
type ServerOptions struct {
	// Pool makes the QPs of sessions. Its Access must include AccessRemoteWrite,
	// and its Cap allow one send and one receive.
	Pool *verbs.Pool
	// PD is the domain of Pool; staging memory is registered in it.
	PD verbs.PD

	// The own end of every connection.
	Port             uint8 // 0: port 1
	GIDIndex         int
	GID              verbs.GID
	LID              uint16
	MTU              verbs.MTU // 0: 4096
	TrafficClass, SL uint8

	Objects Objects

	Sessions             int   // sessions at a time, 0: 1024
	SessionsPerPrincipal int   // 0: 64
	Transfers            int   // data phases at a time, 0: no limit of its own
	StagingBytes         int64 // hard limit of registered memory in bytes, 0: 1 GiB
	StagingPerPrincipal  int64 // bytes, 0: StagingBytes
	MaxTransfer          int64 // bytes per transfer, 0: 64 MiB; at most token.MaxSize and StagingBytes

	PrepareTimeout time.Duration // PREPARE to READY, 0: 30 s
	ExecTimeout    time.Duration // data phase without regard to size, 0: 30 s
	ExecRate       int64         // bytes per second added to ExecTimeout, 0: 100 MB/s
	KeepIdle       time.Duration // idle limit of kept sessions, whole seconds, 0: 60 s

	Logger *slog.Logger // nil: discards
}

// Request is a control request as it came by HTTP.
type Request struct {
	// Header has canonical names.
	Header http.Header
	// Authenticate verifies the signature, including that every x-amz-rdma-*
	// header and If-* header is signed. Errors are as those of Objects. It is
	// called at most once, after the protocol header was checked.
	Authenticate func() (Principal, error)
	// RequestID goes into error bodies.
	RequestID string
}

// Response is the answer to a control request. Success has no body; the
// transport must send Content-Length in either case.
type Response struct {
	Status int
	Header http.Header
	Body   []byte
}

// serverCapabilities are the extensions that every Server has.
const serverCapabilities = token.CapMP | token.CapEP | token.CapBig | token.CapCond | token.CapCRC | token.CapKeep | token.CapMeta

// ServerStats is a snapshot of a Server.
type ServerStats struct {
	Sessions     int   // open, of all kinds
	KeptSessions int   // of them kept ones
	StagingBytes int64 // registered now, in use or idle
	StagingInUse int64
	Quarantined  int64 // bytes that stay out of use because a QP could not be drained

	Prepared, Got, Put, Failed uint64 // sessions and transfers so far
	BytesGot, BytesPut         uint64
	Refused                    uint64 // requests answered with an error before any data moved
}
