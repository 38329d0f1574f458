package main

import (
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
	opts := c.options()
	opts.Logger = log

	ln, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("cannot listen: %w", err)
	}
	defer ln.Close()
	if c.Pprof != "" {
		stop, err := servePprof(c.Pprof, log)
		if err != nil {
			return err
		}
		defer stop()
	}
	dev, rdma, err := c.openDevice(log)
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
func (c *command) openDevice(log *slog.Logger) (verbs.Device, *gateway.RDMA, error) {
	if c.Device == noDevice {
		return nil, nil, nil
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return nil, nil, fmt.Errorf("address to listen on: %w", err)
	}
	dev, choice, err := provider.Open(c.Device, host, log)
	if c.Device == provider.Auto && errors.Is(err, verbs.ErrNoDevice) {
		dev, choice, err = provider.Open(provider.Software, host, log)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("RDMA device: %w", err)
	}
	if limit, unlimited := provider.MemlockLimit(); dev.Name() != provider.Software && !unlimited && uint64(c.StagingSize) > limit {
		dev.Close()
		return nil, nil, fmt.Errorf("the limit for locked memory is %s, less than the staging memory of %s: raise it (ulimit -l) or lower --staging-size",
			humanize.IBytes(limit), humanize.IBytes(uint64(c.StagingSize)))
	}
	return dev, &gateway.RDMA{
		Device:   dev,
		Port:     choice.Port,
		GIDIndex: choice.GIDIndex,
		GID:      choice.GID,
		MTU:      choice.MTU,
		Staging:  int64(c.StagingSize),
	}, nil
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
func servePprof(addr string, log *slog.Logger) (stop func(), err error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("profiles: cannot listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go srv.Serve(ln)
	log.Info("profiles", "url", "http://"+ln.Addr().String()+"/debug/pprof/")
	return func() { srv.Close() }, nil
}
