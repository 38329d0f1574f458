package provider

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/Mellanox/rdmamap"

	"s3rdmafs/verbs"
)

// Options are what the user wants to be so, and not chosen. The zero value
// leaves everything to the choice.
type Options struct {
	Port uint8 // counted from 1; 0: an active one
	// GIDIndex is the row of the port's GID table; nil: chosen.
	GIDIndex *int
	// PathMTU must be the same at both ends; 0: the port's active MTU.
	PathMTU verbs.MTU
	// TrafficClass and SL of the packets, for fabrics that are set up for them.
	TrafficClass, SL uint8
}

// Choice is what connections over a device use.
type Choice struct {
	Port     uint8 // counted from 1
	GIDIndex int   // row of the port's GID table
	GID      verbs.GID
	GIDType  verbs.GIDType
	LID      uint16 // 0 on RoCE
	MTU      verbs.MTU
	MaxMsgSz uint32 // bytes
	NetDev   string // "" when the GID has none
	NUMANode int    // -1: unknown
	Reason   string // why this device, in words

	TrafficClass, SL uint8

	route   route
	options Options
}

// FixedGID reports whether the user named the GID, so that no other may be used.
func (c Choice) FixedGID() bool { return c.options.GIDIndex != nil }

// LogAttrs are the choice and its device for slog.
func (c Choice) LogAttrs(dev verbs.Device) []any {
	return []any{"device", dev.Name(), "port", c.Port, "gid_index", c.GIDIndex, "gid", c.GID, "gid_type", c.GIDType,
		"netdev", c.NetDev, "mtu", c.MTU.Bytes(), "traffic_class", c.TrafficClass, "sl", c.SL, "reason", c.Reason}
}

// Renew chooses anew on the same port of dev, after its GID table changed.
func (c Choice) Renew(dev verbs.Device) (Choice, error) {
	o := c.options
	o.Port = c.Port
	renewed, err := choose(dev, c.route, o)
	renewed.Reason, renewed.options = c.Reason, c.options
	return renewed, err
}

// choose picks port and GID of dev for packets of route r, which may be zero.
// A port whose GIDs are on the route's netdev comes before any other.
// The error wraps verbs.ErrInvalid when the device cannot do what o says.
func choose(dev verbs.Device, r route, o Options) (Choice, error) {
	var best Choice
	var found, onNetDev bool
	var states []string
	first, last := 1, dev.Attr().NumPorts
	if int(o.Port) > last {
		return Choice{}, fmt.Errorf("%w: %s has no port %d, its last one is %d", verbs.ErrInvalid, dev.Name(), o.Port, last)
	}
	if o.Port != 0 {
		first, last = int(o.Port), int(o.Port)
	}
	for n := first; n <= last && !onNetDev; n++ {
		port := uint8(n)
		attr, err := dev.Port(port)
		if err != nil {
			return Choice{}, err
		}
		states = append(states, fmt.Sprintf("port %d is %s", n, attr.State))
		if attr.State != verbs.PortActive {
			continue
		}
		entries, err := dev.GIDs(port)
		if err != nil {
			return Choice{}, err
		}
		if o.GIDIndex != nil {
			if entries, err = only(entries, *o.GIDIndex); err != nil {
				return Choice{}, fmt.Errorf("%s, port %d: %w", dev.Name(), n, err)
			}
		}
		if attr.ActiveMTU != 0 && o.PathMTU > attr.ActiveMTU {
			return Choice{}, fmt.Errorf("%w: a path MTU of %d bytes is more than the %d of %s, port %d",
				verbs.ErrInvalid, o.PathMTU.Bytes(), attr.ActiveMTU.Bytes(), dev.Name(), n)
		}
		entry, here, ok := chooseOnRoute(entries, r)
		if !ok || found && !here {
			continue
		}
		found, onNetDev = true, here
		best = Choice{
			Port:     port,
			GIDIndex: entry.Index,
			GID:      entry.GID,
			GIDType:  entry.Type,
			LID:      attr.LID,
			MTU:      cmp.Or(o.PathMTU, pathMTU(attr.ActiveMTU)),
			MaxMsgSz: attr.MaxMsgSz,
			NetDev:   entry.NetDev,
			NUMANode: numaNode(dev.Name()),

			TrafficClass: o.TrafficClass,
			SL:           o.SL,

			route:   r,
			options: o,
		}
	}
	if !found {
		return Choice{}, fmt.Errorf("%w: %s has no active port with a GID (%s)", verbs.ErrUnreachable, dev.Name(), strings.Join(states, ", "))
	}
	return best, nil
}

// only returns the row of a GID table that has the index.
func only(entries []verbs.GIDEntry, index int) ([]verbs.GIDEntry, error) {
	var has []string
	for _, e := range entries {
		if e.Index == index {
			return []verbs.GIDEntry{e}, nil
		}
		has = append(has, fmt.Sprintf("%d (%s)", e.Index, e.GID))
	}
	return nil, fmt.Errorf("%w: no GID with index %d; the table has %s", verbs.ErrInvalid, index, cmp.Or(strings.Join(has, ", "), "none"))
}

// chooseOnRoute is ChooseGID with the entries of the route's netdev first, and
// among those of one rank the one with the route's source address; a netdev may
// have several addresses.
func chooseOnRoute(entries []verbs.GIDEntry, r route) (best verbs.GIDEntry, onNetDev, ok bool) {
	elsewhere := func(e verbs.GIDEntry) bool { return e.NetDev != r.netdev }
	if own := slices.DeleteFunc(slices.Clone(entries), elsewhere); r.netdev != "" && len(own) > 0 {
		entries, onNetDev = own, true
	}
	best, ok = ChooseGID(entries, FamilyAny)
	for _, e := range entries {
		if r.src.IsValid() && e.GID.Addr().Unmap() == r.src && e.Type == best.Type && FamilyOf(e.GID) == FamilyOf(best.GID) {
			return e, onNetDev, true
		}
	}
	return best, onNetDev, ok
}

// pathMTU follows protocol section 12.3: the active MTU, and 1024 where that
// is less than 512 or unknown.
func pathMTU(active verbs.MTU) verbs.MTU {
	if active < verbs.MTU512 || active > verbs.MTU4096 {
		return verbs.MTU1024
	}
	return active
}

// numaNode reads sysfs; -1 when it does not say.
func numaNode(device string) int {
	b, err := os.ReadFile(filepath.Join(rdmamap.RdmaClassDir, device, "device", "numa_node"))
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return -1
	}
	return n
}
