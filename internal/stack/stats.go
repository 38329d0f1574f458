package stack

import (
	"s3rdmafs/cache"
	"s3rdmafs/rc"
	"s3rdmafs/store"
	"s3rdmafs/verbs"
)

// Stats are the counters of a stack, as `s3rdmafs stat` shows them.
type Stats struct {
	Transport Transport       `json:"transport"`
	Store     store.Stats     `json:"store"`
	Cache     cache.Stats     `json:"cache"`
	RDMA      *rc.ClientStats `json:"rdma,omitempty"`
	Queues    *QueuePairs     `json:"queue_pairs,omitempty"`
}

// QueuePairs are the counters of the QP pool.
type QueuePairs struct {
	Open             int               `json:"open"`
	InUse            int               `json:"in_use"`
	Created          uint64            `json:"created"`
	Recycled         uint64            `json:"recycled"`
	Destroyed        uint64            `json:"destroyed"`
	CompletionErrors map[string]uint64 `json:"completion_errors,omitempty"` // by status
	Stray            uint64            `json:"stray_completions"`
}

func queuePairs(s verbs.PoolStats) *QueuePairs {
	q := &QueuePairs{
		Open: s.Open, InUse: s.InUse, Created: s.Created, Recycled: s.Recycled, Destroyed: s.Destroyed,
		CompletionErrors: map[string]uint64{}, Stray: s.Stray,
	}
	for status, n := range s.CompletionErrors {
		q.CompletionErrors[status.String()] = n
	}
	return q
}

// Transport says which device moves object bytes, or why none does.
type Transport struct {
	Endpoint string `json:"endpoint"`
	Device   string `json:"device"`
	Provider string `json:"provider,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

// Stats returns a snapshot. It never waits for the server.
func (s *Stack) Stats() Stats {
	st := Stats{
		Transport: Transport{Endpoint: s.Config.Endpoint.String(), Device: "none", Reason: s.noRDMA},
		Store:     s.Store.Stats(),
		Cache:     s.Cache.Stats(),
	}
	if s.device != nil {
		st.Transport.Device, st.Transport.Provider, st.Transport.Reason = s.device.Name(), s.device.Provider(), s.choice.Reason
		client := s.client.Stats()
		st.RDMA, st.Queues = &client, queuePairs(s.pool.Stats())
	}
	return st
}
