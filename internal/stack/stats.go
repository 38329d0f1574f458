package stack

import (
	"strings"

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
	RDMA      *rc.ClientStats `json:"rdma,omitempty"`        // of all rails together
	Queues    *QueuePairs     `json:"queue_pairs,omitempty"` // of all rails together
	Rails     []Rail          `json:"rails,omitempty"`
}

// Rail is the state of one port in use.
type Rail struct {
	Device   string `json:"device"`
	Port     uint8  `json:"port"`
	GIDIndex int    `json:"gid_index"`
	GID      string `json:"gid"`
	MTU      int    `json:"mtu"`       // bytes
	NUMANode int    `json:"numa_node"` // -1: unknown
	Usable   bool   `json:"usable"`
	Reason   string `json:"reason,omitempty"` // why it is not usable
	Gets     uint64 `json:"gets"`
	Puts     uint64 `json:"puts"`
	GetBytes uint64 `json:"get_bytes"`
	PutBytes uint64 `json:"put_bytes"`
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

// add counts the pool of one more rail.
func (q *QueuePairs) add(s verbs.PoolStats) {
	q.Open += s.Open
	q.InUse += s.InUse
	q.Created += s.Created
	q.Recycled += s.Recycled
	q.Destroyed += s.Destroyed
	q.Stray += s.Stray
	if q.CompletionErrors == nil {
		q.CompletionErrors = map[string]uint64{}
	}
	for status, n := range s.CompletionErrors {
		q.CompletionErrors[status.String()] += n
	}
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
	if len(s.rails) == 0 {
		return st
	}
	var devices []string
	st.RDMA, st.Queues = &rc.ClientStats{}, &QueuePairs{}
	for _, r := range s.rails {
		client, choice := r.client.Stats(), r.chosen()
		st.RDMA.Add(client)
		st.Queues.add(r.pool.Stats())
		devices = append(devices, r.device.Name())
		st.Rails = append(st.Rails, Rail{
			Device: r.device.Name(), Port: choice.Port, GIDIndex: choice.GIDIndex, GID: choice.GID.String(),
			MTU: choice.MTU.Bytes(), NUMANode: choice.NUMANode,
			Usable: client.Usable, Reason: client.Reason,
			Gets: client.Gets, Puts: client.Puts, GetBytes: client.GetBytes, PutBytes: client.PutBytes,
		})
	}
	first := s.rails[0]
	st.Transport.Device, st.Transport.Provider, st.Transport.Reason = strings.Join(devices, ","), first.device.Provider(), first.chosen().Reason
	return st
}
