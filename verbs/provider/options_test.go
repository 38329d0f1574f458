package provider

import (
	"errors"
	"strings"
	"testing"

	"s3rdmafs/verbs"
)

func TestOpenWithOptions(t *testing.T) {
	index := func(n int) *int { return &n }
	for _, c := range []struct {
		name, device string
		o            Options
		port         uint8
		index        int
		mtu          verbs.MTU
		err          string // else
	}{
		{"all left to the choice", "mlx1", Options{}, 1, 1, verbs.MTU4096, ""},
		{"port", "mlx1", Options{Port: 2}, 2, 1, verbs.MTU4096, ""},
		{"port against the route", "auto", Options{Port: 2}, 2, 1, verbs.MTU4096, ""},
		{"no such port", "mlx1", Options{Port: 3}, 0, 0, 0, "mlx1 has no port 3, its last one is 2"},
		{"no such port on the route's device", "auto", Options{Port: 3}, 0, 0, 0, "no port 3"},
		{"GID index", "mlx1", Options{GIDIndex: index(0)}, 1, 0, verbs.MTU4096, ""},
		{"no such GID index", "mlx1", Options{GIDIndex: index(5)}, 0, 0, 0, "no GID with index 5; the table has 0 (fe80::1), 1 (::ffff:10.1.0.1), 2 (::ffff:10.1.0.7)"},
		{"path MTU", "mlx1", Options{PathMTU: verbs.MTU1024}, 1, 1, verbs.MTU1024, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld()
			w.options = c.o
			w.options.TrafficClass, w.options.SL = 106, 3
			_, got, err := w.openFor(c.device, "10.1.0.20")
			if c.err != "" {
				if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), c.err) || !w.devices["mlx1"].closed {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.Port != c.port || got.GIDIndex != c.index || got.MTU != c.mtu || got.TrafficClass != 106 || got.SL != 3 {
				t.Errorf("%+v", got)
			}
			if got.FixedGID() != (c.o.GIDIndex != nil) {
				t.Errorf("fixed: %v", got.FixedGID())
			}
		})
	}
	w := newWorld()
	w.devices["mlx1"].ports[0].Attr.ActiveMTU = verbs.MTU1024
	w.options.PathMTU = verbs.MTU2048
	if _, _, err := w.openFor("mlx1", "10.1.0.20"); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "2048 bytes is more than the 1024 of mlx1, port 1") {
		t.Errorf("path MTU above the active one: %v", err)
	}
}

// A changed GID table is looked at as the first one was, on the same port.
func TestRenew(t *testing.T) {
	w := newWorld()
	dev, c, err := w.openFor("auto", "10.1.0.50")
	if err != nil {
		t.Fatal(err)
	}
	port := &dev.(*stubDevice).ports[0]
	port.GIDs = port.GIDs[:2] // the route's own address is gone
	again, err := c.Renew(dev)
	if err != nil || again.Port != 1 || again.GIDIndex != 1 || again.Reason != c.Reason {
		t.Errorf("%+v, %v", again, err)
	}
	port.GIDs = append(port.GIDs, verbs.GIDEntry{Index: 2, GID: gid("::ffff:10.1.0.7"), Type: verbs.GIDRoCEv2, NetDev: "eth1"})
	if again, err = again.Renew(dev); err != nil || again != c {
		t.Errorf("%+v, %v; want what was chosen first: %+v", again, err, c)
	}
	port.GIDs = nil
	if _, err = again.Renew(dev); !errors.Is(err, verbs.ErrUnreachable) {
		t.Errorf("empty table: %v", err)
	}
}
