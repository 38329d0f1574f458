package rc

import (
	"maps"
	"sync"

	"s3rdmafs/token"
)

// ClientStats are counts since the client was made, and its present state.
type ClientStats struct {
	Gets             uint64            `json:"gets"` // good transfers
	Puts             uint64            `json:"puts"`
	GetBytes         uint64            `json:"get_bytes"`
	PutBytes         uint64            `json:"put_bytes"`
	GetErrors        uint64            `json:"get_errors"` // failed transfers, after their retry
	PutErrors        uint64            `json:"put_errors"`
	Retries          uint64            `json:"retries"`
	Cancels          uint64            `json:"cancels"`
	CookieMismatches uint64            `json:"cookie_mismatches"` // completions and answers of another transfer
	KeptOpened       uint64            `json:"kept_opened"`       // kept sessions opened
	KeptTransfers    uint64            `json:"kept_transfers"`    // transfers in them
	Fallbacks        map[string]uint64 `json:"fallbacks,omitempty"`

	InUse        int                `json:"in_use"` // transfers under way, and how many may be
	Bound        int                `json:"bound"`
	Kept         int                `json:"kept"` // kept sessions, and the idle ones of them
	Idle         int                `json:"idle"`
	Usable       bool               `json:"usable"`
	Reason       string             `json:"reason,omitempty"` // why it is not usable
	Capabilities token.Capabilities `json:"capabilities"`
}

// Add counts another client of the same endpoint in. Together they are usable when
// one is.
func (s *ClientStats) Add(o ClientStats) {
	s.Gets += o.Gets
	s.Puts += o.Puts
	s.GetBytes += o.GetBytes
	s.PutBytes += o.PutBytes
	s.GetErrors += o.GetErrors
	s.PutErrors += o.PutErrors
	s.Retries += o.Retries
	s.Cancels += o.Cancels
	s.CookieMismatches += o.CookieMismatches
	s.KeptOpened += o.KeptOpened
	s.KeptTransfers += o.KeptTransfers
	if s.Fallbacks == nil {
		s.Fallbacks = make(map[string]uint64)
	}
	for reason, n := range o.Fallbacks {
		s.Fallbacks[reason] += n
	}
	s.InUse += o.InUse
	s.Bound += o.Bound
	s.Kept += o.Kept
	s.Idle += o.Idle
	s.Usable = s.Usable || o.Usable
	if s.Reason == "" {
		s.Reason = o.Reason
	}
	if s.Usable {
		s.Reason = ""
	}
	s.Capabilities |= o.Capabilities
}

type counters struct {
	mu sync.Mutex
	s  ClientStats
}

func (n *counters) update(f func(*ClientStats)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f(&n.s)
}

func (n *counters) done(op Op, bytes int64) {
	n.update(func(s *ClientStats) {
		if op == OpGet {
			s.Gets++
			s.GetBytes += uint64(bytes)
		} else {
			s.Puts++
			s.PutBytes += uint64(bytes)
		}
	})
}

func (n *counters) failed(op Op) {
	n.update(func(s *ClientStats) {
		if op == OpGet {
			s.GetErrors++
		} else {
			s.PutErrors++
		}
	})
}

func (n *counters) retried()      { n.update(func(s *ClientStats) { s.Retries++ }) }
func (n *counters) cancelled()    { n.update(func(s *ClientStats) { s.Cancels++ }) }
func (n *counters) mismatch()     { n.update(func(s *ClientStats) { s.CookieMismatches++ }) }
func (n *counters) opened()       { n.update(func(s *ClientStats) { s.KeptOpened++ }) }
func (n *counters) keptTransfer() { n.update(func(s *ClientStats) { s.KeptTransfers++ }) }

// Stats returns a snapshot.
func (c *Client) Stats() ClientStats {
	c.counts.mu.Lock()
	s := c.counts.s
	c.counts.mu.Unlock()
	s.InUse, s.Bound = c.slots.state()
	c.keptMu.Lock()
	s.Kept, s.Idle = c.kept, len(c.idle)
	c.keptMu.Unlock()
	s.Usable, s.Reason = c.ep.usable()
	s.Capabilities, _ = c.ep.capabilities()
	c.ep.mu.Lock()
	s.Fallbacks = maps.Clone(c.ep.fallbackBy)
	c.ep.mu.Unlock()
	return s
}
