package rc

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"s3rdmafs/token"
	"s3rdmafs/verbs"
)

// Times of the endpoint's memory (section 17.3).
const (
	negativeTime     = 5 * time.Minute
	outageTime       = 30 * time.Second
	strikeTime       = time.Minute // after strikes failures in a row, doubling up to maxStrikeTime
	maxStrikeTime    = 30 * time.Minute
	strikes          = 3
	strangerAnswers  = 3
	noKeepTime       = 5 * time.Minute
	keepPause        = 10 * time.Second // after a failure that may be about the moment only
	limitTime        = 5 * time.Minute
	startGrace       = 5 * time.Millisecond
	doubledGrace     = 10 * time.Millisecond
	maxGrace         = 100 * time.Millisecond
	ackTimeout       = 67 * time.Millisecond // timeout 14 of section 12.3
	startNanosPerB   = 10                    // 100 MB/s
	transferOverhead = 2 * time.Millisecond
)

// endpoint is what the client remembers of its endpoint.
type endpoint struct {
	log *slog.Logger

	mu        sync.Mutex
	spoken    bool // it answered in this protocol once
	capsKnown bool
	caps      token.Capabilities
	early     bool // it advertises on PREPARE, so an answer to that without a word lacks it

	negative      bool // RDMA is not used until the time below, and then tried by one request
	negativeUntil time.Time
	reason        string
	trial         bool // one request is trying
	announced     bool // the log has said that RDMA is used

	strikes   int
	penalty   time.Duration // of the next negative entry by strikes
	strangers int           // answers in a row like those of a server without the protocol

	noKeepUntil     time.Time
	refusedCapacity sizeLimit // of kept sessions; the zero value refuses none
	limits          map[Op]sizeLimit

	grace      time.Duration
	nanosPerB  float64
	gid        verbs.GIDEntry
	gids       []verbs.GIDEntry // to choose from
	fallbackBy map[string]uint64

	epoch     atomic.Uint64   // counts what ends all kept sessions; read without mu
	suspended string          // why the port is out of use, "" when it is not
	port      context.Context // ends when it goes out of use
	portLost  context.CancelCauseFunc
}

type sizeLimit struct {
	size  int64
	until time.Time
}

func newEndpoint(log *slog.Logger, gid verbs.GIDEntry) *endpoint {
	port, lost := context.WithCancelCause(context.Background())
	return &endpoint{
		port:       port,
		portLost:   lost,
		log:        log,
		penalty:    strikeTime,
		limits:     make(map[Op]sizeLimit),
		grace:      startGrace,
		nanosPerB:  startNanosPerB,
		gid:        gid,
		fallbackBy: make(map[string]uint64),
	}
}

// usable tells whether the port and the negative cache let requests through,
// without side effects.
func (e *endpoint) usable() (ok bool, reason string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.suspended != "" {
		return false, e.suspended
	}
	if e.negative && (e.trial || time.Now().Before(e.negativeUntil)) {
		return false, e.reason
	}
	return true, ""
}

// admit is usable for a request that is about to run. After a negative entry
// expired it lets one request through, whose outcome decides for the others.
func (e *endpoint) admit() (ok, trial bool, reason string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.suspended != "" {
		return false, false, e.suspended
	}
	if !e.negative {
		return true, false, ""
	}
	if e.trial || time.Now().Before(e.negativeUntil) {
		return false, false, e.reason
	}
	e.trial = true
	return true, true, ""
}

// endTrial lets the next request try if the one that was let through told nothing.
func (e *endpoint) endTrial() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.trial = false
}

// learn takes what any answer tells. FINAL without the header clears the memory; an
// answer to PREPARE does not, since VGW-mp advertises on FINAL only.
func (e *endpoint) learn(path string, a answer) {
	caps := token.CapabilitiesOf(a.header)
	final := a.status == http.StatusOK && (path == token.PathReady || path == token.PathNext)
	e.mu.Lock()
	defer e.mu.Unlock()
	if caps != 0 || final {
		e.caps, e.capsKnown = caps, true
	}
	if caps != 0 && path == token.PathPrepare {
		e.early = true
	}
}

// lacks returns what a transfer needs and the server that answered PREPARE with have
// does not, though the endpoint did before: behind one name there may be several
// servers, and a server may be replaced. Only part uploads are taken on trust, of
// endpoints that never advertise on PREPARE (VGW-mp).
func (e *endpoint) lacks(need, have token.Capabilities) token.Capabilities {
	missing := need &^ have
	e.mu.Lock()
	defer e.mu.Unlock()
	if missing == 0 || missing == token.CapMP && !e.early {
		return 0
	}
	e.capsKnown = false
	return missing
}

// capabilities are the words of the newest answer.
func (e *endpoint) capabilities() (caps token.Capabilities, known bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.caps, e.capsKnown
}

// capsAre notes the outcome of a probe.
func (e *endpoint) capsAre(caps token.Capabilities) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.caps, e.capsKnown = caps, true
}

// prepared notes a good answer to PREPARE.
func (e *endpoint) prepared() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.spoken = true
	e.strangers = 0
}

func (e *endpoint) hasSpoken() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.spoken
}

// succeeded notes a good transfer.
func (e *endpoint) succeeded() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.strikes = 0
	e.strangers = 0
	e.penalty = strikeTime
	e.trial = false
	if e.negative || !e.announced {
		e.log.Info("RDMA in use")
	}
	e.negative = false
	e.announced = true
}

// refuse puts the endpoint into the negative cache for d.
func (e *endpoint) refuse(d time.Duration, reason string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.refuseLocked(d, reason)
}

func (e *endpoint) refuseLocked(d time.Duration, reason string) {
	if !e.negative {
		e.log.Warn("RDMA not used: "+reason, "retry_after", d)
	} else {
		e.log.Debug("RDMA still not used: "+reason, "retry_after", d)
	}
	e.negative = true
	e.trial = false
	e.reason = reason
	if until := time.Now().Add(d); until.After(e.negativeUntil) {
		e.negativeUntil = until
	}
	e.strikes = 0
	e.strangers = 0
}

// strike counts a failure of READY or of the data phase.
func (e *endpoint) strike(reason string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.strikes++
	// A request that tries an endpoint again speaks for the endpoint.
	if e.strikes < strikes && !e.trial {
		return
	}
	d := e.penalty
	e.penalty = min(2*e.penalty, maxStrikeTime)
	e.refuseLocked(d, reason)
}

// stranger counts an answer like that of an S3 server that never heard of the
// protocol. It condemns the endpoint only when the same request succeeds by HTTP
// (Client.HTTPSucceeded) or when it is the third in a row.
func (e *endpoint) stranger(reason string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.spoken {
		return
	}
	e.strangers++
	if e.strangers >= strangerAnswers || e.trial {
		e.refuseLocked(negativeTime, reason)
	}
}

// confirmStranger is called when HTTP did what PREPARE was refused.
func (e *endpoint) confirmStranger(reason string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.spoken {
		e.refuseLocked(negativeTime, reason)
	}
}

// limit remembers that the server refused size bytes as too large.
func (e *endpoint) limit(op Op, size int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.limits[op] = sizeLimit{size: size / 2, until: time.Now().Add(limitTime)}
}

// maxSize returns what is known about the largest transfer, at most most.
func (e *endpoint) maxSize(op Op, most int64) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l, ok := e.limits[op]; ok && time.Now().Before(l.until) {
		return min(most, l.size)
	}
	return most
}

// mayKeep reports whether kept sessions can be tried.
func (e *endpoint) mayKeep() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.capsKnown && e.caps.Has(token.CapKeep) && !time.Now().Before(e.noKeepUntil)
}

// noKeep gives kept sessions up for d.
func (e *endpoint) noKeep(d time.Duration, reason string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.noKeepUntil = time.Now().Add(d)
	e.log.Info("kept sessions not used: "+reason, "retry_after", d)
}

// capacityRefused remembers a capacity that is too large for the server, though
// a transfer may not be.
func (e *endpoint) capacityRefused(capacity int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.refusedCapacity = sizeLimit{size: capacity, until: time.Now().Add(limitTime)}
}

// mayRound reports whether a transfer's size can be rounded up to capacity.
func (e *endpoint) mayRound(capacity int64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return capacity < e.refusedCapacity.size || !time.Now().Before(e.refusedCapacity.until)
}

// writeGrace is how long to wait between writing READY and a PUT's write (12.5).
func (e *endpoint) writeGrace() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.grace
}

// wrote adapts the grace to a write of size bytes that completed after took.
func (e *endpoint) wrote(size int64, took time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	expected := time.Duration(e.nanosPerB*float64(size)) + transferOverhead
	if took > expected+ackTimeout {
		e.grace = min(max(2*e.grace, doubledGrace), maxGrace)
	} else {
		e.grace = e.grace * 9 / 10
	}
	e.nanosPerB += (float64(max(0, took-transferOverhead))/float64(size) - e.nanosPerB) / 8
}

// writeRetriesExceeded sets the grace to its largest value.
func (e *endpoint) writeRetriesExceeded() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.grace = maxGrace
}

func (e *endpoint) ownGID() verbs.GIDEntry {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.gid
}

func (e *endpoint) useGID(g verbs.GIDEntry) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gid != g {
		e.log.Info("own GID changed to the server's address family", "gid_index", g.Index)
	}
	e.gid = g
}

// fellBack counts a request that goes by HTTP after all.
func (e *endpoint) fellBack(reason string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fallbackBy[reason]++
}
