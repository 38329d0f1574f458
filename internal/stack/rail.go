package stack

import (
	"errors"
	"log/slog"
	"strings"
	"sync"

	"s3rdmafs/cache"
	"s3rdmafs/rc"
	"s3rdmafs/token"
	"s3rdmafs/verbs"
	"s3rdmafs/verbs/provider"
)

// maxQPs is how many QPs a rail has at most; sessions linger, so that they are
// more than the transfers under way.
const maxQPs = 64

// rail is a port of a device with everything that is on it.
type rail struct {
	log    *slog.Logger
	device verbs.Device
	pd     verbs.PD
	pool   *verbs.Pool
	client *rc.Client
	watch  *verbs.Watch

	mu     sync.Mutex
	choice provider.Choice // changes with the GID table
}

// openRails opens the devices of a list "NAME[:PORT],...".
func openRails(list, host string, path provider.Options, log *slog.Logger) ([]*rail, error) {
	specs, err := provider.ParseSpecs(list, path)
	if err != nil {
		return nil, err
	}
	var rails []*rail
	for _, spec := range specs {
		device, choice, err := provider.OpenWith(spec.Name, host, spec.Options, log)
		if err != nil {
			return nil, errors.Join(err, closeRails(rails))
		}
		log.Info("RDMA device", choice.LogAttrs(device)...)
		rails = append(rails, &rail{log: log, device: device, choice: choice})
	}
	return rails, nil
}

// open makes what is on the device. On error the rail is to be closed all the same.
func (r *rail) open(s *Stack) error {
	gids, err := r.gids(r.choice)
	if err != nil {
		return err
	}
	if r.pd, err = r.device.AllocPD(); err != nil {
		return err
	}
	c := r.choice
	r.pool, err = verbs.NewPool(r.device, verbs.PoolOptions{
		PD: r.pd, Port: c.Port, MaxQPs: maxQPs, CQs: 1,
		Cap:    verbs.QPCap{MaxSendWR: 2, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1},
		Access: verbs.AccessRemoteWrite,
		Logger: r.log,
	})
	if err != nil {
		return err
	}
	limits := r.pool.Limits()
	r.client, err = rc.NewClient(rc.ClientOptions{
		Endpoint: s.Config.Endpoint, Region: s.Config.Region, Credentials: s.credentials,
		Pool: r.pool, Port: c.Port, GIDs: gids, GIDIndex: c.GIDIndex, GID: c.GID,
		LID: c.LID, MTU: c.MTU, MaxMsgSize: int64(c.MaxMsgSz), TrafficClass: c.TrafficClass, SL: c.SL,
		Sessions: min(sessions, limits.MaxQPs),
		Logger:   r.log.With("device", r.device.Name()),
	})
	if err != nil {
		return err
	}
	r.log.Info("RDMA limits", "device", r.device.Name(), "port", c.Port,
		"queue_pairs", limits.MaxQPs, "completion_queues", limits.CQs, "cq_depth", limits.CQDepth,
		"transfer_bytes", r.client.MaxTransfer(token.OpGet), "memory_regions", r.device.Attr().MaxMR, "cut", r.cut())
	r.watch = verbs.NewWatch(r.device, verbs.WatchOptions{
		Port: c.Port, Pool: r.pool,
		Down: r.client.Suspend, Up: r.client.Resume, GIDChange: r.gidChange,
		Logger: r.log,
	})
	return nil
}

// sessions is how many transfers a rail has under way at most.
const sessions = 8

// cut says which sizes the device made smaller than the wanted ones.
func (r *rail) cut() string {
	cut := r.pool.Cut()
	if r.client.MaxTransfer(token.OpGet) == int64(r.choice.MaxMsgSz) {
		cut = append(cut, "transfers to the largest message of the port")
	}
	if len(cut) == 0 {
		return "nothing"
	}
	return strings.Join(cut, ", ")
}

// gids are the own addresses that the client may choose from.
func (r *rail) gids(c provider.Choice) ([]verbs.GIDEntry, error) {
	if c.FixedGID() {
		return []verbs.GIDEntry{{Index: c.GIDIndex, GID: c.GID, Type: c.GIDType, NetDev: c.NetDev}}, nil
	}
	return r.device.GIDs(c.Port)
}

// gidChange reads the GID table again.
func (r *rail) gidChange() error {
	c, err := r.chosen().Renew(r.device)
	if err != nil {
		return err
	}
	gids, err := r.gids(c)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.choice = c
	r.mu.Unlock()
	r.client.SetGID(c.GIDIndex, c.GID, gids)
	return nil
}

func (r *rail) chosen() provider.Choice {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.choice
}

// usable reports whether the rail can take a transfer of an ordinary size.
func (r *rail) usable() bool {
	ok, _ := r.client.EligibleGet(0, 1<<20)
	return ok
}

// forCache is the rail as the cache knows it.
func (r *rail) forCache() cache.Rail {
	return cache.Rail{PD: railPD{PD: r.pd, rail: r}, NUMANode: r.chosen().NUMANode, Usable: r.usable}
}

// closeClient ends everything that moves bytes. What is registered with the rail
// can be closed after it, and must be before closeDevice.
func (r *rail) closeClient() error {
	if r.watch != nil {
		r.watch.Close()
	}
	if r.client != nil {
		r.client.Close()
	}
	if r.pool != nil {
		return r.pool.Close()
	}
	return nil
}

func (r *rail) closeDevice() error {
	var errs []error
	if r.pd != nil {
		errs = append(errs, r.pd.Close())
	}
	return errors.Join(append(errs, r.device.Close())...)
}

func closeRails(rails []*rail) error {
	var errs []error
	for _, r := range rails {
		errs = append(errs, r.closeClient(), r.closeDevice())
	}
	return errors.Join(errs...)
}

// railPD registers memory so that transfers of it find the rail.
type railPD struct {
	verbs.PD
	rail *rail
}

func (p railPD) RegMR(mem *verbs.Memory, off, length int, access verbs.Access) (verbs.MR, error) {
	mr, err := p.PD.RegMR(mem, off, length, access)
	if err != nil {
		return nil, err
	}
	return &railMR{MR: mr, rail: p.rail, mem: mem, off: off, access: access}, nil
}

// railMR is memory registered with its rail and, once that was out of use, with
// others too.
type railMR struct {
	verbs.MR
	rail   *rail
	mem    *verbs.Memory
	off    int
	access verbs.Access

	mu     sync.Mutex
	others map[*rail]verbs.MR
}

// on returns the region as rail r knows it.
func (m *railMR) on(r *rail) (verbs.MR, error) {
	if r == m.rail {
		return m.MR, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if mr := m.others[r]; mr != nil {
		return mr, nil
	}
	mr, err := r.pd.RegMR(m.mem, m.off, len(m.Bytes()), m.access)
	if err != nil {
		return nil, err
	}
	if m.others == nil {
		m.others = map[*rail]verbs.MR{}
	}
	m.others[r] = mr
	return mr, nil
}

// Close deregisters from all rails. After an error it may be called again.
func (m *railMR) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for r, mr := range m.others {
		if err := mr.Close(); err != nil {
			return err
		}
		delete(m.others, r)
	}
	return m.MR.Close()
}
