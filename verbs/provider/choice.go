package provider

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/Mellanox/rdmamap"

	"s3rdmafs/verbs"
)

// Choice is what connections over a device use by default.
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
}

// choose picks port and GID of dev for packets of route r, which may be zero.
// A port whose GIDs are on the route's netdev comes before any other.
func choose(dev verbs.Device, r route) (Choice, error) {
	var best Choice
	var found, onNetDev bool
	var states []string
	for n := 1; n <= dev.Attr().NumPorts && !onNetDev; n++ {
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
			MTU:      pathMTU(attr.ActiveMTU),
			MaxMsgSz: attr.MaxMsgSz,
			NetDev:   entry.NetDev,
			NUMANode: numaNode(dev.Name()),
		}
	}
	if !found {
		return Choice{}, fmt.Errorf("%w: %s has no active port with a GID (%s)", verbs.ErrUnreachable, dev.Name(), strings.Join(states, ", "))
	}
	return best, nil
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
