package ibv_test

import (
	"testing"

	"s3rdmafs/internal/testdevice"
	"s3rdmafs/verbs/verbstest"
)

// TestDevice runs the suite on the real devices that are named, the two ends of
// most connections on different ones where there are several. One that is named
// and missing is a failure.
func TestDevice(t *testing.T) {
	if len(testdevice.Names()) == 0 {
		t.Skipf("%s names no real RDMA device", testdevice.Variable)
	}
	verbstest.Run(t, func() (verbstest.Peer, error) {
		d, c, err := testdevice.OpenNamed()
		return verbstest.Peer{Device: d, Port: c.Port, GIDIndex: c.GIDIndex, GID: c.GID, MTU: c.MTU}, err
	})
}
