package rc

import (
	"maps"
	"sync"

	"s3rdmafs/token"
)

// ClientStats are counts since the client was made, and its present state.
type ClientStats struct {
	Gets, Puts         uint64 // good transfers
	GetBytes, PutBytes uint64
	GetErrors          uint64 // failed transfers, after their retry
	PutErrors          uint64
	Retries            uint64
	Cancels            uint64
	CookieMismatches   uint64 // completions and answers of another transfer
	KeptOpened         uint64 // kept sessions opened
	KeptTransfers      uint64 // transfers in them
	Fallbacks          map[string]uint64

	InUse, Bound int // transfers under way, and how many may be
	Kept, Idle   int // kept sessions, and the idle ones of them
	Usable       bool
	Reason       string // why it is not usable
	Capabilities token.Capabilities
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
