package stack

import (
	"s3rdmafs/cache"
	"s3rdmafs/rc"
	"s3rdmafs/store"
	"s3rdmafs/verbs"
)

// Stats are the counters of a stack, as `s3rdmafs stat` shows them.
type Stats struct {
	Transport Transport        `json:"transport"`
	Store     store.Stats      `json:"store"`
	Cache     cache.Stats      `json:"cache"`
	RDMA      *rc.ClientStats  `json:"rdma,omitempty"`
	Queues    *verbs.PoolStats `json:"queue_pairs,omitempty"`
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
		client, queues := s.client.Stats(), s.pool.Stats()
		st.RDMA, st.Queues = &client, &queues
	}
	return st
}
