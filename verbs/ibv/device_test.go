package ibv_test

import (
	"log/slog"
	"os"
	"testing"

	"s3rdmafs/verbs/provider"
	"s3rdmafs/verbs/verbstest"
)

// TestDevice runs the suite on a real device. One that is named and missing is
// a failure.
func TestDevice(t *testing.T) {
	name := os.Getenv("S3RDMAFS_TEST_DEVICE")
	if name == "" || name == provider.Software {
		t.Skip("S3RDMAFS_TEST_DEVICE names no real RDMA device")
	}
	verbstest.Run(t, func() (verbstest.Peer, error) {
		d, c, err := provider.Open(name, "", slog.New(slog.DiscardHandler))
		return verbstest.Peer{Device: d, Port: c.Port, GIDIndex: c.GIDIndex, GID: c.GID, MTU: c.MTU}, err
	})
}
