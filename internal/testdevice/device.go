package testdevice

import (
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"s3rdmafs/verbs"
	"s3rdmafs/verbs/provider"
	"s3rdmafs/verbs/shm"
)

// Variable holds the names of the real devices for the tests, separated by
// commas. Unset, or "shm": the software device. One that is named and missing
// fails the tests.
const Variable = "S3RDMAFS_TEST_DEVICE"

// Names returns the real devices to test on; none: the software device.
func Names() []string {
	v := os.Getenv(Variable)
	if v == "" || v == provider.Software {
		return nil
	}
	return strings.Split(v, ",")
}

var opened atomic.Uint64

// OpenNamed opens the real devices in turn, so that where there are several,
// the two ends that a test opens are on different ones. There must be one in
// Names.
func OpenNamed() (verbs.Device, provider.Choice, error) {
	names := Names()
	i := (opened.Add(1) - 1) % uint64(len(names))
	return provider.Open(names[i], "", slog.New(slog.DiscardHandler))
}

// SoftwareOnly skips a test that makes the software device fail where the tests
// run on real ones.
func SoftwareOnly(t testing.TB) {
	t.Helper()
	if len(Names()) > 0 {
		t.Skip("needs the software device's fault hooks")
	}
}

// Open opens a software device with the faults, or the next of the real
// devices, where a test with faults is skipped. The device is closed at the end
// of the test, after everything made from it.
func Open(t testing.TB, faults *shm.Faults) verbs.Device {
	t.Helper()
	dev, _, err := open(t, faults)
	if err != nil {
		t.Fatalf("open device: %v", err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Errorf("close device: %v", err)
		}
	})
	return dev
}

func open(t testing.TB, faults *shm.Faults) (verbs.Device, provider.Choice, error) {
	t.Helper()
	if len(Names()) == 0 {
		dev, err := shm.Open(shm.Options{Faults: faults})
		return dev, provider.Choice{}, err
	}
	if faults != nil && !piecesOnly(faults) {
		SoftwareOnly(t)
	}
	return OpenNamed()
}

// piecesOnly tells that f asks for no more than data that lands piece by piece,
// as it does on real devices.
func piecesOnly(f *shm.Faults) bool {
	return f.Hook == nil && f.Drop == 0 && f.Delay == 0 && f.Late == 0 && f.Fail == 0
}

// GID returns the entry of port 1 that connections of dev use.
func GID(t testing.TB, dev verbs.Device) verbs.GIDEntry {
	t.Helper()
	table, err := dev.GIDs(1)
	if err != nil {
		t.Fatal(err)
	}
	entry, ok := provider.ChooseGID(table, provider.FamilyAny)
	if !ok {
		t.Fatalf("%s has no GID", dev.Name())
	}
	return entry
}
