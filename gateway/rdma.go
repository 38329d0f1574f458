package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"s3rdmafs/rc"
	"s3rdmafs/verbs"
)

const (
	defaultPort   = 1
	defaultMaxQPs = 1024
	// maxTransfer is the largest transfer of a session, in bytes.
	maxTransfer = 64 << 20
)

// rdmaSide is what the gateway has on its device.
type rdmaSide struct {
	pd     verbs.PD
	pool   *verbs.Pool
	server *rc.Server
	watch  *verbs.Watch
}

// openRDMA makes the rc server on o.Device for the objects of g. On error
// nothing stays open.
func openRDMA(o RDMA, objs rc.Objects, log *slog.Logger) (_ *rdmaSide, err error) {
	if o.Port == 0 {
		o.Port = defaultPort
	}
	if o.MaxQPs == 0 {
		o.MaxQPs = defaultMaxQPs
	}
	port, err := o.Device.Port(o.Port)
	if err != nil {
		return nil, fmt.Errorf("device %s, port %d: %w", o.Device.Name(), o.Port, err)
	}
	if o.MTU == 0 {
		o.MTU = port.ActiveMTU
	}
	if o.GID.IsZero() {
		if o.GID, err = gidAt(o.Device, o.Port, o.GIDIndex); err != nil {
			return nil, err
		}
	}
	r := &rdmaSide{}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.closeDevice())
		}
	}()
	if r.pd, err = o.Device.AllocPD(); err != nil {
		return nil, fmt.Errorf("device %s: protection domain: %w", o.Device.Name(), err)
	}
	r.pool, err = verbs.NewPool(o.Device, verbs.PoolOptions{
		PD:     r.pd,
		Port:   o.Port,
		MaxQPs: o.MaxQPs,
		Access: verbs.AccessRemoteWrite,
		Logger: log,
	})
	if err != nil {
		return nil, fmt.Errorf("device %s: queue pairs: %w", o.Device.Name(), err)
	}
	limits := r.pool.Limits()
	most := int64(port.MaxMsgSz) // 0: unknown
	if most == 0 || most > maxTransfer {
		most = maxTransfer
	}
	// The device serves others, too.
	regions := max(1, o.Device.Attr().MaxMR/2)
	cut := r.pool.Cut()
	if most < maxTransfer {
		cut = append(cut, fmt.Sprintf("transfers from %d bytes to %d", int64(maxTransfer), most))
	}
	log.Info("RDMA limits", "device", o.Device.Name(), "port", o.Port,
		"queue_pairs", limits.MaxQPs, "completion_queues", limits.CQs, "cq_depth", limits.CQDepth,
		"transfer_bytes", most, "memory_regions", regions, "cut", cmp.Or(strings.Join(cut, ", "), "nothing"))
	r.server, err = rc.NewServer(rc.ServerOptions{
		Pool:                 r.pool,
		PD:                   r.pd,
		Port:                 o.Port,
		GIDIndex:             o.GIDIndex,
		GID:                  o.GID,
		LID:                  port.LID,
		MTU:                  o.MTU,
		TrafficClass:         o.TrafficClass,
		SL:                   o.SL,
		MaxTransfer:          most,
		StagingMRs:           regions,
		Objects:              objs,
		Sessions:             o.Sessions,
		SessionsPerPrincipal: o.PerClient,
		StagingBytes:         o.Staging,
		Logger:               log,
	})
	if err != nil {
		return nil, err
	}
	r.watch = verbs.NewWatch(o.Device, verbs.WatchOptions{
		Port: o.Port, Pool: r.pool,
		Down: r.server.Suspend, Up: r.server.Resume,
		GIDChange: func() error {
			index, gid, err := o.renewGID()
			if err == nil {
				r.server.SetGID(index, gid)
			}
			return err
		},
		Logger: log,
	})
	return r, nil
}

func (o RDMA) renewGID() (int, verbs.GID, error) {
	if o.RenewGID != nil {
		return o.RenewGID()
	}
	gid, err := gidAt(o.Device, o.Port, o.GIDIndex)
	return o.GIDIndex, gid, err
}

func gidAt(dev verbs.Device, port uint8, index int) (verbs.GID, error) {
	entries, err := dev.GIDs(port)
	if err != nil {
		return verbs.GID{}, fmt.Errorf("device %s, port %d: %w", dev.Name(), port, err)
	}
	for _, e := range entries {
		if e.Index == index {
			return e.GID, nil
		}
	}
	return verbs.GID{}, fmt.Errorf("device %s, port %d has no GID with index %d", dev.Name(), port, index)
}

// close ends the sessions. Where one cannot be ended safely, everything its
// memory hangs on stays open.
func (r *rdmaSide) close(ctx context.Context) error {
	r.watch.Close()
	if err := r.server.Close(ctx); err != nil {
		return err
	}
	return r.closeDevice()
}

func (r *rdmaSide) closeDevice() error {
	var errs []error
	if r.pool != nil {
		errs = append(errs, r.pool.Close())
	}
	if r.pd != nil && errors.Join(errs...) == nil {
		errs = append(errs, r.pd.Close())
	}
	return errors.Join(errs...)
}
