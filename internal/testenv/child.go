package testenv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"time"

	"s3rdmafs/gateway"
	"s3rdmafs/verbs/shm"
)

// childEnv holds a childConfig in the environment of a process that is to be
// a gateway instead of a test.
const childEnv = "S3RDMAFS_TESTENV_GATEWAY"

// childConfig is what a gateway process is told by its parent.
type childConfig struct {
	Gateway gateway.Options
	Listen  string
	RDMA    bool
}

// childReady is the line that a gateway process prints once it listens.
type childReady struct {
	Addr string
	Err  string
}

// closeTimeout bounds the graceful end of a gateway.
const closeTimeout = 5 * time.Second

func init() {
	if v := os.Getenv(childEnv); v != "" {
		os.Exit(runChild(v))
	}
}

// runChild serves until standard input ends, which it does when the parent
// closes it or dies.
func runChild(config string) int {
	out := json.NewEncoder(os.Stdout)
	var c childConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		out.Encode(childReady{Err: err.Error()})
		return 1
	}
	c.Gateway.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	g, ln, closeDevice, err := open(c)
	if err != nil {
		out.Encode(childReady{Err: err.Error()})
		return 1
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(ln) }()
	out.Encode(childReady{Addr: ln.Addr().String()})

	gone := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(gone)
	}()
	select {
	case err := <-served:
		fmt.Fprintln(os.Stderr, "serve:", err)
		return 1
	case <-gone:
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := errors.Join(g.Close(ctx), closeDevice()); err != nil {
		fmt.Fprintln(os.Stderr, "close:", err)
		return 1
	}
	return 0
}

// open makes the listener and the gateway of c, and its device if c wants RDMA.
func open(c childConfig) (_ *gateway.Gateway, _ net.Listener, closeDevice func() error, err error) {
	ln, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, nil, nil, err
	}
	closeDevice = func() error { return nil }
	if c.RDMA {
		dev, err := shm.Open(shm.Options{Logger: c.Gateway.Logger})
		if err != nil {
			ln.Close()
			return nil, nil, nil, err
		}
		closeDevice = dev.Close
		rdma := gateway.RDMA{}
		if c.Gateway.RDMA != nil {
			rdma = *c.Gateway.RDMA
		}
		rdma.Device = dev
		c.Gateway.RDMA = &rdma
	}
	g, err := gateway.New(c.Gateway)
	if err != nil {
		ln.Close()
		return nil, nil, nil, errors.Join(err, closeDevice())
	}
	return g, ln, closeDevice, nil
}
