package store

import (
	"sync"
	"sync/atomic"
)

// Traffic counts finished transfers of object bytes.
type Traffic struct {
	Transfers int64 `json:"transfers"`
	Bytes     int64 `json:"bytes"`
}

// ByTransport is the traffic of one direction.
type ByTransport struct {
	RDMA Traffic `json:"rdma"`
	HTTP Traffic `json:"http"`
}

// Stats are counters since Open; InFlight is a gauge. A chunk of a split read
// or a part is one transfer.
type Stats struct {
	Read  ByTransport `json:"read"`
	Write ByTransport `json:"write"`
	// HTTPDataBytesEligible are bytes that went by HTTP in transfers no smaller
	// than the RDMA minimum, whatever the reason.
	HTTPDataBytesEligible int64 `json:"http_data_bytes_eligible"`
	// Fallbacks counts transfers of at least the RDMA minimum that went by HTTP
	// though the mode is not off, by reason.
	Fallbacks map[string]int64 `json:"fallbacks"`
	Retries   int64            `json:"retries"`
	InFlight  int64            `json:"in_flight"`
}

type direction int

const (
	dirRead direction = iota
	dirWrite
)

type transport int

const (
	overRDMA transport = iota
	overHTTP
)

// counters is the live form of Stats.
type counters struct {
	transfers, bytes [2][2]atomic.Int64 // [direction][transport]
	eligibleHTTP     atomic.Int64
	retries          atomic.Int64
	inFlight         atomic.Int64

	mu        sync.Mutex
	fallbacks map[string]int64
}

func (c *counters) moved(d direction, t transport, n int64, eligible bool) {
	c.transfers[d][t].Add(1)
	c.bytes[d][t].Add(n)
	if t == overHTTP && eligible {
		c.eligibleHTTP.Add(n)
	}
}

// fallback counts reason and reports whether it is its first time.
func (c *counters) fallback(reason string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fallbacks == nil {
		c.fallbacks = make(map[string]int64)
	}
	c.fallbacks[reason]++
	return c.fallbacks[reason] == 1
}

func (c *counters) snapshot() Stats {
	traffic := func(d direction) ByTransport {
		of := func(t transport) Traffic {
			return Traffic{Transfers: c.transfers[d][t].Load(), Bytes: c.bytes[d][t].Load()}
		}
		return ByTransport{RDMA: of(overRDMA), HTTP: of(overHTTP)}
	}
	s := Stats{
		Read: traffic(dirRead), Write: traffic(dirWrite),
		HTTPDataBytesEligible: c.eligibleHTTP.Load(),
		Fallbacks:             make(map[string]int64),
		Retries:               c.retries.Load(),
		InFlight:              c.inFlight.Load(),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, v := range c.fallbacks {
		s.Fallbacks[k] = v
	}
	return s
}
