package cache

// counters only grow, but for objects and blocks. Guarded by Cache.mu.
type counters struct {
	objects, blocks      int
	hits, joined, misses int64
	fetched, readAhead   int64
	wasted               int64
	evictions            int64
	fetchErrors          int64
	changed              int64
	waits                int64
	quarantines          int64
	registrationErrors   int64
}

// Stats is a snapshot. Sizes are in bytes.
type Stats struct {
	Budget int64 `json:"budget"`
	Pinned int64 `json:"pinned"` // of registered slabs
	InUse  int64 `json:"in_use"` // not free

	Free        int64 `json:"free"`
	Filling     int64 `json:"filling"`
	Resident    int64 `json:"resident"`
	Draining    int64 `json:"draining"`
	Staging     int64 `json:"staging"`
	Quarantined int64 `json:"quarantined"`

	Objects int `json:"objects"` // open or cached
	Blocks  int `json:"blocks"`
	Runs    int `json:"runs"` // sequential runs followed
	Waiting int `json:"waiting"`

	Hits               int64 `json:"hits"`
	Joined             int64 `json:"joined"` // waited for a fetch that was under way
	Misses             int64 `json:"misses"`
	Fetched            int64 `json:"fetched"`
	ReadAhead          int64 `json:"readahead"`
	Wasted             int64 `json:"wasted"` // read ahead and dropped unread
	Evictions          int64 `json:"evictions"`
	FetchErrors        int64 `json:"fetch_errors"`
	Changed            int64 `json:"changed"` // versions that went away
	Waits              int64 `json:"waits"`   // for memory
	Quarantines        int64 `json:"quarantines"`
	RegistrationErrors int64 `json:"registration_errors"`
}

// Stats takes a snapshot.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Stats{
		Budget:             c.opt.Size,
		Pinned:             c.pinned,
		InUse:              c.opt.Size - c.bytes[stateFree],
		Free:               c.bytes[stateFree],
		Filling:            c.bytes[stateFilling],
		Resident:           c.bytes[stateResident],
		Draining:           c.bytes[stateDraining],
		Staging:            c.bytes[stateStaging],
		Quarantined:        c.bytes[stateQuarantined],
		Objects:            c.objects,
		Blocks:             c.blocks,
		Runs:               c.runs,
		Waiting:            c.readers.Len() + c.writers.Len(),
		Hits:               c.hits,
		Joined:             c.joined,
		Misses:             c.misses,
		Fetched:            c.fetched,
		ReadAhead:          c.readAhead,
		Wasted:             c.wasted,
		Evictions:          c.evictions,
		FetchErrors:        c.fetchErrors,
		Changed:            c.changed,
		Waits:              c.waits,
		Quarantines:        c.quarantines,
		RegistrationErrors: c.registrationErrors,
	}
}
