package stack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/dustin/go-humanize"

	"s3rdmafs/cache"
	"s3rdmafs/store"
	"s3rdmafs/token"
	"s3rdmafs/verbs"
	"s3rdmafs/verbs/provider"
)

// Options say what to open. The zero value of each field means the default
// that its comment gives.
type Options struct {
	Store store.Options // RDMA and Mode of it are set by Open
	RDMA  store.Mode
	// Device is "auto", or one or more names with or without a port, as in
	// "mlx5_0:1,mlx5_1": rails, which are used in turn.
	Device string
	// Path is what is to be so at the own end of connections.
	Path      provider.Options
	CacheSize int64 // bytes; DefaultCacheSize
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
	mode   store.Mode
	rails  []*rail // none without RDMA
	next   atomic.Uint64
	noRDMA string
}

// Open opens the stack. It does not ask the server anything yet.
func Open(ctx context.Context, o Options) (*Stack, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Device == "" {
		o.Device = provider.Auto
	}
	config, err := o.Store.Resolve()
	if err != nil {
		return nil, err
	}
	s := &Stack{log: o.Logger, Config: config, mode: o.RDMA}
	if err := s.openDevices(o, config.Endpoint.Hostname()); err != nil {
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

// openDevices opens the RDMA devices, or notes why there is none.
func (s *Stack) openDevices(o Options, host string) error {
	if o.RDMA == store.ModeOff {
		s.noRDMA = "switched off"
		return nil
	}
	rails, err := openRails(o.Device, host, o.Path, o.Logger)
	if err == nil {
		s.rails = rails
		return nil
	}
	// A device asked for by name and missing is an error in every mode.
	if o.RDMA == store.ModeRequire || o.Device != provider.Auto || !errors.Is(err, verbs.ErrNoDevice) {
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
	return fmt.Errorf("%w: a cache of %s cannot be pinned, this process may lock %s: raise it (ulimit -l, LimitMEMLOCK=), lower --cache-size, or use --rdma off",
		verbs.ErrMemlock, humanize.IBytes(uint64(size)), humanize.IBytes(limit))
}

func (s *Stack) openAbove(o Options) error {
	size := o.CacheSize
	if size == 0 {
		size = DefaultCacheSize
	}
	if len(s.rails) > 0 {
		err := checkMemlock(size)
		if err != nil && (o.RDMA == store.ModeRequire || o.CacheSize != 0) {
			return err
		}
		if err != nil {
			// Nobody asked for RDMA or for this size: work over HTTP, and say so.
			s.noRDMA = err.Error()
			s.log.Warn("RDMA not used: object bytes go by HTTP", "why", err)
			rails := s.rails
			s.rails = nil
			if err := closeRails(rails); err != nil {
				return err
			}
		}
	}
	so := o.Store
	so.Endpoint, so.Region, so.Credentials = s.Config.Endpoint.String(), s.Config.Region, s.Config.Credentials
	so.Mode = o.RDMA
	so.Logger = o.Logger
	co := cache.Options{Size: size, Logger: o.Logger}
	if len(s.rails) == 0 {
		so.Mode = store.ModeOff
	} else {
		for _, r := range s.rails {
			if err := r.open(s); err != nil {
				return fmt.Errorf("RDMA device %s: %w", r.device.Name(), err)
			}
			co.Rails = append(co.Rails, r.forCache())
			// The device serves others, too.
			if most := max(1, r.device.Attr().MaxMR/2); co.MaxMRs == 0 || most < co.MaxMRs {
				co.MaxMRs = most
			}
		}
		so.RDMA = &rails{all: s.rails, log: o.Logger}
	}
	var err error
	if s.Store, err = store.Open(so); err != nil {
		return err
	}
	if limit, unlimited := provider.MemlockLimit(); !unlimited {
		co.MemlockLimit = limit
	}
	co.Source = s.Store
	s.Cache, err = cache.New(co)
	return err
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
	for _, r := range s.rails {
		errs = append(errs, r.closeClient())
	}
	if s.Cache != nil {
		errs = append(errs, s.Cache.Close(ctx))
	}
	for _, r := range s.rails {
		errs = append(errs, r.closeDevice())
	}
	return errors.Join(errs...)
}
