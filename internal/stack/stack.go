package stack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"s3rdmafs/cache"
	"s3rdmafs/rc"
	"s3rdmafs/store"
	"s3rdmafs/token"
	"s3rdmafs/verbs"
	"s3rdmafs/verbs/provider"
)

// Options say what to open. The zero value of each field means the default
// that its comment gives.
type Options struct {
	Store     store.Options // RDMA and Mode of it are set by Open
	RDMA      store.Mode
	Device    string // auto
	CacheSize int64  // bytes; DefaultCacheSize
	Logger    *slog.Logger
}

// DefaultCacheSize is the budget for all pinned memory of a mount, in bytes.
const DefaultCacheSize = 2 << 30

// Stack is an opened store and cache with the RDMA side below them, if any.
type Stack struct {
	Store *store.Store
	Cache *cache.Cache
	// Config is where requests go and how they are signed.
	Config store.Config

	log    *slog.Logger
	device verbs.Device
	choice provider.Choice
	pd     verbs.PD
	pool   *verbs.Pool
	client *rc.Client
	noRDMA string
}

// Open opens the stack. It does not ask the server anything yet.
func Open(ctx context.Context, o Options) (*Stack, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Device == "" {
		o.Device = "auto"
	}
	config, err := o.Store.Resolve()
	if err != nil {
		return nil, err
	}
	s := &Stack{log: o.Logger, Config: config}
	if err := s.openDevice(o, config.Endpoint.Hostname()); err != nil {
		return nil, err
	}
	if err := s.openAbove(o); err != nil {
		if cerr := s.Close(ctx); cerr != nil {
			s.log.Warn("closing after a failed start", "err", cerr)
		}
		return nil, err
	}
	return s, nil
}

// openDevice opens the RDMA device, or notes why there is none.
func (s *Stack) openDevice(o Options, host string) error {
	if o.RDMA == store.ModeOff {
		s.noRDMA = "switched off"
		return nil
	}
	device, choice, err := provider.Open(o.Device, host, o.Logger)
	if err == nil {
		s.device, s.choice = device, choice
		return nil
	}
	// A device asked for by name and missing is an error in every mode.
	if o.RDMA == store.ModeRequire || o.Device != "auto" || !errors.Is(err, verbs.ErrNoDevice) {
		return fmt.Errorf("RDMA device %q: %w", o.Device, err)
	}
	s.noRDMA = err.Error()
	s.log.Info("no RDMA device for this endpoint: object bytes go by HTTP", "endpoint_host", host, "why", err)
	return nil
}

// checkMemlock refuses a budget that registration could not pin, before
// anything is read into it.
func checkMemlock(size int64) error {
	limit, unlimited := provider.MemlockLimit()
	if unlimited || uint64(size) <= limit {
		return nil
	}
	return fmt.Errorf("%w: a cache of %d MiB cannot be pinned, this process may lock %d MiB: raise it (ulimit -l, LimitMEMLOCK=), lower --cache-size, or use --rdma off",
		verbs.ErrMemlock, size>>20, limit>>20)
}

func (s *Stack) openAbove(o Options) error {
	size := o.CacheSize
	if size == 0 {
		size = DefaultCacheSize
	}
	if s.device != nil {
		err := checkMemlock(size)
		if err != nil && (o.RDMA == store.ModeRequire || o.CacheSize != 0) {
			return err
		}
		if err != nil {
			// Nobody asked for RDMA or for this size: work over HTTP, and say so.
			s.noRDMA = err.Error()
			s.log.Warn("RDMA not used: object bytes go by HTTP", "why", err)
			if err := s.device.Close(); err != nil {
				return err
			}
			s.device = nil
		}
	}
	so := o.Store
	so.Endpoint, so.Region, so.Credentials = s.Config.Endpoint.String(), s.Config.Region, s.Config.Credentials
	so.Mode = o.RDMA
	so.Logger = o.Logger
	if s.device == nil {
		so.Mode = store.ModeOff
	} else if err := s.openClient(&so); err != nil {
		return err
	}
	var err error
	if s.Store, err = store.Open(so); err != nil {
		return err
	}
	limit, unlimited := provider.MemlockLimit()
	if unlimited {
		limit = 0
	}
	s.Cache, err = cache.New(cache.Options{Size: size, PD: s.pd, MemlockLimit: limit, Source: s.Store, Logger: o.Logger})
	return err
}

// openClient makes the RC client and hands it to the store's options.
func (s *Stack) openClient(so *store.Options) error {
	gids, err := s.device.GIDs(s.choice.Port)
	if err != nil {
		return err
	}
	if s.pd, err = s.device.AllocPD(); err != nil {
		return err
	}
	s.pool, err = verbs.NewPool(s.device, verbs.PoolOptions{
		PD: s.pd, Port: s.choice.Port, MaxQPs: 64, CQs: 1,
		Cap:    verbs.QPCap{MaxSendWR: 2, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1},
		Access: verbs.AccessRemoteWrite,
		Logger: s.log,
	})
	if err != nil {
		return err
	}
	s.client, err = rc.NewClient(rc.ClientOptions{
		Endpoint: s.Config.Endpoint, Region: s.Config.Region, Credentials: s.credentials,
		Pool: s.pool, Port: s.choice.Port, GIDs: gids, GIDIndex: s.choice.GIDIndex, GID: s.choice.GID,
		LID: s.choice.LID, MTU: s.choice.MTU, MaxMsgSize: int64(s.choice.MaxMsgSz),
		Logger: s.log,
	})
	if err != nil {
		return err
	}
	so.RDMA = s.client
	return nil
}

// credentials are those that the store's requests carry, for the RC client's own.
func (s *Stack) credentials(ctx context.Context) (token.Credentials, error) {
	v, err := s.Config.Retrieve(ctx)
	return token.Credentials{AccessKey: v.AccessKeyID, SecretKey: v.SecretAccessKey, SessionToken: v.SessionToken}, err
}

// Close gives everything back, top to bottom. It goes on after an error and
// returns all of them: memory still pinned is one.
func (s *Stack) Close(ctx context.Context) error {
	var errs []error
	closers := []func() error{}
	if s.device != nil {
		closers = append(closers, s.device.Close)
	}
	if s.pd != nil {
		closers = append(closers, s.pd.Close)
	}
	if s.Cache != nil {
		closers = append(closers, func() error { return s.Cache.Close(ctx) })
	}
	if s.pool != nil {
		closers = append(closers, s.pool.Close)
	}
	if s.client != nil {
		closers = append(closers, func() error { s.client.Close(); return nil })
	}
	for _, fn := range slices.Backward(closers) {
		errs = append(errs, fn())
	}
	return errors.Join(errs...)
}
