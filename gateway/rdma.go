package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"s3rdmafs/rc"
	"s3rdmafs/verbs"
)

const (
	defaultPort   = 1
	defaultMaxQPs = 1024
)

// rdmaSide is what the gateway has on its device.
type rdmaSide struct {
	pd     verbs.PD
	pool   *verbs.Pool
	server *rc.Server
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
	r.server, err = rc.NewServer(rc.ServerOptions{
		Pool:                 r.pool,
		PD:                   r.pd,
		Port:                 o.Port,
		GIDIndex:             o.GIDIndex,
		GID:                  o.GID,
		LID:                  port.LID,
		MTU:                  o.MTU,
		Objects:              objs,
		Sessions:             o.Sessions,
		SessionsPerPrincipal: o.PerClient,
		StagingBytes:         o.Staging,
		Logger:               log,
	})
	if err != nil {
		return nil, err
	}
	return r, nil
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
