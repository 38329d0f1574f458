package testenv

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"time"

	"s3rdmafs/gateway"
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
	g, ln, err := open(c)
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
	if err := g.Close(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "close:", err)
		return 1
	}
	return 0
}

// open makes the listener and the gateway of c.
func open(c childConfig) (*gateway.Gateway, net.Listener, error) {
	ln, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, nil, err
	}
	g, err := gateway.New(c.Gateway)
	if err != nil {
		ln.Close()
		return nil, nil, err
	}
	return g, ln, nil
}
