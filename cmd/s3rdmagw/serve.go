package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"

	"s3rdmafs/gateway"
	"s3rdmafs/verbs"
	"s3rdmafs/verbs/provider"
)

// closeTimeout is how long requests under way may take after a signal.
const closeTimeout = 20 * time.Second

// noDevice is the value of --device for a gateway without RDMA.
const noDevice = "none"

// serve runs the gateway until a signal.
func (c *command) serve(stdout, stderr io.Writer) (err error) {
	log, closeLog, err := c.openLog(stderr)
	if err != nil {
		return err
	}
	defer closeLog()
	restore, err := capturePrints(log)
	if err != nil {
		return err
	}
	defer restore()
	opts := c.options()
	opts.Logger = log

	ln, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("cannot listen: %w", err)
	}
	defer ln.Close()
	profiles := ""
	if c.Pprof != "" {
		addr, stop, err := servePprof(c.Pprof)
		if err != nil {
			return err
		}
		defer stop()
		profiles = "http://" + addr.String() + "/debug/pprof/"
	}
	dev, choice, rdma, err := c.openDevice(log)
	if err != nil {
		return err
	}
	if dev != nil {
		opts.RDMA = rdma
		defer func() { err = errors.Join(err, dev.Close()) }()
	}
	g, err := gateway.New(opts)
	if err != nil {
		return err
	}

	// The second signal ends the process as if there were no handler.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	served := make(chan error, 1)
	go func() { served <- g.Serve(ln) }()
	// Only now: before an error, a line of information would hide it.
	if dev != nil {
		log.Info("RDMA device", choice.LogAttrs(dev)...)
	}
	if profiles != "" {
		log.Info("profiles", "url", profiles)
	}
	log.Info("listening", "url", g.URL(ln), "backend", string(opts.Backend), "dir", opts.Dir, "device", deviceName(dev), "read_only", opts.ReadOnly)
	fmt.Fprintf(stdout, "s3rdmagw listening on %s\n", g.URL(ln))

	select {
	case err = <-served:
		err = fmt.Errorf("serving ended: %w", err)
	case <-ctx.Done():
		stop()
		log.Info("shutting down")
	}
	closing, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return errors.Join(err, g.Close(closing))
}

// openDevice opens the device that --device names; nil without one.
func (c *command) openDevice(log *slog.Logger) (verbs.Device, provider.Choice, *gateway.RDMA, error) {
	if c.Device == noDevice {
		return nil, provider.Choice{}, nil, nil
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return nil, provider.Choice{}, nil, fmt.Errorf("address to listen on: %w", err)
	}
	dev, choice, err := provider.OpenWith(c.Device, host, c.Flags.Options(), log)
	if c.Device == provider.Auto && errors.Is(err, verbs.ErrNoDevice) {
		dev, choice, err = provider.OpenWith(provider.Software, host, c.Flags.Options(), log)
	}
	if err != nil {
		return nil, provider.Choice{}, nil, fmt.Errorf("RDMA device: %w", err)
	}
	staging, err := c.staging(log)
	if err != nil {
		return nil, provider.Choice{}, nil, errors.Join(err, dev.Close())
	}
	current := choice
	return dev, choice, &gateway.RDMA{
		Device:       dev,
		Port:         choice.Port,
		GIDIndex:     choice.GIDIndex,
		GID:          choice.GID,
		MTU:          choice.MTU,
		TrafficClass: choice.TrafficClass,
		SL:           choice.SL,
		Staging:      staging,
		RenewGID: func() (int, verbs.GID, error) {
			renewed, err := current.Renew(dev)
			if err != nil {
				return 0, verbs.GID{}, err
			}
			current = renewed
			return current.GIDIndex, current.GID, nil
		},
	}, nil
}

// Staging memory in bytes when nobody asked for a size, and the least that is worth it.
const (
	defaultStaging = 1 << 30
	leastStaging   = 1 << 20
)

// staging is the size of the staging memory. A size asked for that registration
// could not pin is an error.
func (c *command) staging(log *slog.Logger) (int64, error) {
	if c.StagingSize != 0 && c.StagingSize < leastStaging {
		return 0, fmt.Errorf("--staging-size: %s are too few, it takes at least %s", humanize.IBytes(uint64(c.StagingSize)), humanize.IBytes(leastStaging))
	}
	size := uint64(cmp.Or(int64(c.StagingSize), defaultStaging))
	limit, unlimited := provider.MemlockLimit()
	if unlimited || size <= limit {
		return int64(size), nil
	}
	if c.StagingSize == 0 && limit >= leastStaging {
		log.Warn("less staging memory than the default: raise the limit for locked memory (ulimit -l, LimitMEMLOCK=)",
			"default", humanize.IBytes(size), "limit", humanize.IBytes(limit))
		return int64(limit), nil
	}
	return 0, fmt.Errorf("%w: staging memory of %s cannot be pinned, this process may lock %s: raise it (ulimit -l, LimitMEMLOCK=), lower --staging-size, or use --device none",
		verbs.ErrMemlock, humanize.IBytes(size), humanize.IBytes(limit))
}

func deviceName(dev verbs.Device) string {
	if dev == nil {
		return noDevice
	}
	return dev.Name()
}

// openLog returns the logger, and a function that closes its file.
func (c *command) openLog(stderr io.Writer) (*slog.Logger, func(), error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return nil, nil, err
	}
	w, closeFile := stderr, func() {}
	if c.LogFile != "" {
		f, err := os.OpenFile(c.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return nil, nil, fmt.Errorf("log file: %w", err)
		}
		w, closeFile = f, func() { f.Close() }
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})), closeFile, nil
}

// servePprof serves Go's profiles on addr until stop is called.
func servePprof(addr string) (at net.Addr, stop func(), err error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, nil, fmt.Errorf("profiles: cannot listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go srv.Serve(ln)
	return ln.Addr(), func() { srv.Close() }, nil
}
