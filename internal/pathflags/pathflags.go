// Package pathflags are the command-line flags for the own end of RDMA
// connections, the same for the mount and the gateway.
package pathflags

import (
	"errors"
	"fmt"
	"strconv"

	"s3rdmafs/verbs"
	"s3rdmafs/verbs/provider"
)

// Flags are embedded in a command of kong's.
type Flags struct {
	RDMAPort     uint8 `name:"rdma-port" placeholder:"N" help:"Port of the RDMA device, counted from 1. Default: an active one, the route's first."`
	GIDIndex     *int  `name:"gid-index" placeholder:"N" help:"Row of the port's GID table; no other is used then. Default: the best for the route."`
	PathMTU      mtu   `name:"path-mtu" placeholder:"BYTES" help:"256, 512, 1024, 2048 or 4096; must be the same on both sides. Default: the port's active MTU."`
	TrafficClass uint8 `placeholder:"N" help:"Traffic class of RDMA packets (DSCP and ECN bits), as the fabric is set up. Default: 0."`
	ServiceLevel uint8 `placeholder:"N" help:"Service level of RDMA packets, 0 to 15. Default: 0."`
}

// Validate is called by kong.
func (f Flags) Validate() error {
	if f.ServiceLevel > 15 {
		return errors.New("--service-level is 0 to 15")
	}
	if f.GIDIndex != nil && *f.GIDIndex < 0 {
		return errors.New("--gid-index counts from 0")
	}
	return nil
}

// Options are the flags as the choice of a device takes them.
func (f Flags) Options() provider.Options {
	return provider.Options{
		Port: f.RDMAPort, GIDIndex: f.GIDIndex, PathMTU: verbs.MTU(f.PathMTU),
		TrafficClass: f.TrafficClass, SL: f.ServiceLevel,
	}
}

// mtu is a path MTU, written in bytes.
type mtu verbs.MTU

func (m *mtu) UnmarshalText(text []byte) error {
	n, err := strconv.Atoi(string(text))
	v, ok := verbs.ParseMTU(n)
	if err != nil || !ok {
		return fmt.Errorf("%q is not a path MTU: 256, 512, 1024, 2048 or 4096", text)
	}
	*m = mtu(v)
	return nil
}
