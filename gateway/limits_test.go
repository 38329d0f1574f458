package gateway_test

import (
	"context"
	"log/slog"
	"net"
	"strconv"
	"testing"
	"time"

	"s3rdmafs/gateway"
	"s3rdmafs/internal/testenv"
	"s3rdmafs/token"
	"s3rdmafs/verbs"
	"s3rdmafs/verbs/shm"
)

// smallMessages is a device whose WRITEs carry 1 MiB at most.
type smallMessages struct{ verbs.Device }

func (d smallMessages) Port(n uint8) (verbs.PortAttr, error) {
	p, err := d.Device.Port(n)
	p.MaxMsgSz = 1 << 20
	return p, err
}

// A transfer that does not fit one WRITE of the device is refused before it begins.
func TestTransfersFitTheDevice(t *testing.T) {
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	dev, err := shm.Open(shm.Options{Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	g, err := gateway.New(gateway.Options{
		Dir: t.TempDir(), Buckets: []string{"bucket"}, Region: testenv.Region, Logger: log,
		AccessKey: testenv.AccessKey, SecretKey: testenv.SecretKey,
		RDMA: &gateway.RDMA{Device: smallMessages{dev}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(ln) }()
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		for _, err := range []error{g.Close(ctx), <-served, dev.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
	}()
	e := &testenv.Env{Endpoint: g.URL(ln), Region: testenv.Region, AccessKey: testenv.AccessKey, SecretKey: testenv.SecretKey}
	for n, want := range map[int]int{1 << 20: 200, 1<<20 + 1: 413} {
		c := prepare(e, token.OpPut, token.Target{Bucket: "bucket", Key: "key"})
		c.header.Set(token.HeaderSize, strconv.Itoa(n))
		if resp, code := c.send(t, e); resp.StatusCode != want {
			t.Errorf("PREPARE of %d bytes: %d %s, want %d", n, resp.StatusCode, code, want)
		}
	}
}
