package provider

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// route is how packets to one address leave this machine.
type route struct {
	netdev string     // for an own address the netdev that has it; "" for loopback
	src    netip.Addr // source address of the packets
	local  bool       // the address is one of this machine
}

// lookupRoute asks the kernel.
func lookupRoute(to netip.Addr) (route, error) {
	to = to.Unmap()
	if to.IsLinkLocalUnicast() && to.Zone() != "" {
		return route{netdev: to.Zone()}, nil // the zone is the netdev
	}
	routes, err := netlink.RouteGet(net.IP(to.AsSlice()))
	if err != nil {
		return route{}, fmt.Errorf("route to %s: %w", to, err)
	}
	if len(routes) == 0 {
		return route{}, fmt.Errorf("no route to %s", to)
	}
	r := route{local: routes[0].Type == unix.RTN_LOCAL}
	if src, ok := netip.AddrFromSlice(routes[0].Src); ok {
		r.src = src.Unmap()
	}
	if r.local {
		r.netdev = ownerOf(to)
		return r, nil
	}
	ifc, err := net.InterfaceByIndex(routes[0].LinkIndex)
	if err != nil {
		return route{}, fmt.Errorf("route to %s: %w", to, err)
	}
	r.netdev = ifc.Name
	return r, nil
}

// ownerOf returns the netdev that has the address, "" for a loopback address.
func ownerOf(a netip.Addr) string {
	ifcs, err := net.Interfaces()
	if err != nil {
		return ""
	}
	for _, ifc := range ifcs {
		if ifc.Flags&net.FlagLoopback != 0 {
			continue
		}
		addrs, err := ifc.Addrs()
		if err != nil {
			continue
		}
		for _, own := range addrs {
			if p, err := netip.ParsePrefix(own.String()); err == nil && p.Addr().Unmap().WithZone("") == a {
				return ifc.Name
			}
		}
	}
	return ""
}

// resolve returns the addresses of a host name or address.
func resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}
