//go:build cgo

package ibv

import (
	"testing"

	"s3rdmafs/verbs/verbstest"
)

// standInSkips are the parts of the suite with a second process: the queue
// pairs of the stand-in reach each other within one process only.
const standInSkips = "^TestStandIn$/^(TwoProcesses|ProcessDies)$"

func TestStandIn(t *testing.T) {
	f := newFake(t)
	verbstest.Run(t, func() (verbstest.Peer, error) {
		d, err := f.open("fake0")
		return verbstest.Peer{Device: d, GIDIndex: 3, ChecksSender: true}, err
	})
}
