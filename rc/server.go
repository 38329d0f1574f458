package rc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"s3rdmafs/token"
	"s3rdmafs/verbs"
)

// ServerOptions configures a Server. Pool, PD, GID and Objects are required.
type ServerOptions struct {
	// Pool makes the QPs of sessions. Its Access must include AccessRemoteWrite,
	// and its Cap allow one send and one receive.
	Pool *verbs.Pool
	// PD is the domain of Pool; staging memory is registered in it. It is one for all
	// principals, so what keeps them out of each other's staging buffers is that they
	// are not told the rkeys (doc/PROTOCOL.md, section 5.5).
	PD verbs.PD

	// The own end of every connection.
	Port             uint8 // 0: port 1
	GIDIndex         int
	GID              verbs.GID
	LID              uint16
	MTU              verbs.MTU // 0: 4096; the same as the clients'
	TrafficClass, SL uint8

	Objects Objects

	Sessions             int   // sessions at a time, 0: 1024
	SessionsPerPrincipal int   // 0: 64
	Transfers            int   // data phases at a time, 0: no limit of its own
	StagingBytes         int64 // hard limit of registered memory in bytes, 0: 1 GiB
	StagingPerPrincipal  int64 // bytes of its buffers, 0: half of StagingBytes, but one largest transfer
	StagingMRs           int   // hard limit of memory regions, 0: none of its own
	MaxTransfer          int64 // bytes per transfer, 0: 64 MiB; at most token.MaxSize and the limits above

	PrepareTimeout time.Duration // PREPARE to READY, 0: 30 s
	// ExecTimeout is for the part of one request, or of one PREPARE, that works on a
	// transfer, up to its data phase's end, without regard to size; 0: 30 s.
	ExecTimeout time.Duration
	// StoreTimeout is for Objects.Store, without regard to size; 0: 45 s. It should
	// end before the client's allowance for FINAL (60 s), since an object that is
	// stored later may overwrite what was stored in its place.
	StoreTimeout time.Duration
	ExecRate     int64         // bytes per second, by which these two grow with size, 0: 100 MB/s
	KeepIdle     time.Duration // idle limit of kept sessions, whole seconds, 0: 60 s

	// Linger is how long the QP of a PUT outlives its transfer, 0: 250 ms. If the
	// acknowledgement was lost, the client's adapter sends the last packet again
	// after its ACK timeout (67 ms on most), and without an answer the client
	// would take a stored object for a failed transfer. Sessions that linger give
	// way when their QP or memory is needed.
	Linger time.Duration

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

// cancelGrace is what a data phase still gets after CANCEL: its client has
// stopped, only what is on its way already may arrive.
const cancelGrace = 500 * time.Millisecond

// teardownBudget bounds the draining of one QP; after it the QP is destroyed.
const teardownBudget = 5 * time.Second

// Server is the gateway's side of hipobj-rc-v2. All methods may be called
// concurrently. The pool, domain and device stay the caller's; they must outlive
// Close.
//
// Server.mu and stagingPool.mu are leaves: neither is taken while the other is
// held, and none is held during I/O or a verbs call.
type Server struct {
	o       ServerOptions
	log     *slog.Logger
	staging *stagingPool
	count   serverCounters

	// work counts requests and teardowns; added to under mu while not closing, or
	// by work that is itself counted.
	work    sync.WaitGroup
	aborted context.Context // ends, with errShuttingDown, when Close no longer waits
	abort   context.CancelCauseFunc

	mu        sync.Mutex
	closing   bool
	sessions  map[string]*session
	usage     map[string]*usage // by principal
	reserved  int               // sessions of all principals, being created ones too
	own       verbs.GIDEntry    // of sessions made from now on
	suspended bool              // the port is out of use
	down      chan struct{}     // closed when it goes out of use
	transfers int               // data phases that run
}

// NewServer checks o and prepares a server; it starts nothing.
func NewServer(o ServerOptions) (*Server, error) {
	if o.Pool == nil || o.PD == nil || o.Objects == nil || o.GID.IsZero() {
		return nil, errors.New("rc: server needs Pool, PD, Objects and GID")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Port = cmp.Or(o.Port, 1)
	o.MTU = cmp.Or(o.MTU, verbs.MTU4096)
	o.Sessions = cmp.Or(o.Sessions, 1024)
	o.SessionsPerPrincipal = cmp.Or(o.SessionsPerPrincipal, 64)
	o.StagingBytes = cmp.Or(o.StagingBytes, 1<<30)
	// Buffers are of whole pages.
	o.MaxTransfer = min(cmp.Or(o.MaxTransfer, 64<<20), token.MaxSize, wholePages(o.StagingBytes))
	if o.StagingPerPrincipal == 0 {
		o.StagingPerPrincipal = max(o.StagingBytes/2, pagesFor(o.MaxTransfer))
	}
	o.MaxTransfer = min(o.MaxTransfer, wholePages(o.StagingPerPrincipal))
	o.PrepareTimeout = cmp.Or(o.PrepareTimeout, 30*time.Second)
	o.ExecTimeout = cmp.Or(o.ExecTimeout, 30*time.Second)
	o.StoreTimeout = cmp.Or(o.StoreTimeout, 45*time.Second)
	o.ExecRate = cmp.Or(o.ExecRate, 100_000_000)
	o.KeepIdle = cmp.Or(o.KeepIdle, time.Minute)
	o.Linger = cmp.Or(o.Linger, 250*time.Millisecond)
	if o.MaxTransfer <= 0 || o.ExecRate <= 0 || o.KeepIdle < time.Second {
		return nil, errors.New("rc: server limits out of range")
	}
	o.KeepIdle = o.KeepIdle.Truncate(time.Second)
	staging := newStagingPool(o.PD, o.StagingBytes, o.MaxTransfer)
	staging.most = o.StagingMRs
	aborted, abort := context.WithCancelCause(context.Background())
	return &Server{
		o:        o,
		log:      o.Logger,
		staging:  staging,
		aborted:  aborted,
		abort:    abort,
		own:      verbs.GIDEntry{Index: o.GIDIndex, GID: o.GID},
		down:     make(chan struct{}),
		sessions: make(map[string]*session),
		usage:    make(map[string]*usage),
	}, nil
}

// begin admits a request; the caller must call work.Done.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.work.Add(1)
	return true
}

// Close refuses new requests, ends the sessions that wait, and lets running
// transfers end until ctx is done; then it breaks them off. An error means
// that some work did not end or memory had to be left registered; then the pool
// and PD must not be closed.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return ErrClosed
	}
	s.closing = true
	var waiting []*session
	for _, sess := range s.sessions {
		if s.endWaiting(sess) {
			waiting = append(waiting, sess)
		}
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		for _, sess := range waiting {
			s.teardown(sess)
		}
		s.work.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		s.abort(errShuttingDown)
		select {
		case <-done:
		case <-time.After(2 * teardownBudget):
			return fmt.Errorf("rc: sessions did not end: %w", context.Cause(ctx))
		}
	}
	return s.staging.close()
}
