package doctor

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
)

// Route is how packets to one address of the endpoint leave this machine.
type Route struct {
	To      netip.Addr
	NetDev  string
	Source  netip.Addr
	Gateway netip.Addr // invalid without one
}

func (r Route) String() string {
	s := fmt.Sprintf("%s by %s, source %s", r.To, r.NetDev, r.Source)
	if r.Gateway.IsValid() {
		s += ", gateway " + r.Gateway.String()
	}
	return s
}

// resolve finds the endpoint's addresses and the routes to them.
func (r *run) resolve(ctx context.Context) {
	host := r.config.Endpoint.Hostname()
	c := Check{Group: groupNetwork, Name: "name", Status: OK}
	if a, err := netip.ParseAddr(host); err == nil {
		r.addrs = []netip.Addr{a}
		c.Fact = host + " is an address"
	} else {
		ctx, cancel := context.WithTimeout(ctx, r.o.Timeout)
		defer cancel()
		start := time.Now()
		r.addrs, err = net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if err != nil {
			c.Status, c.Fact = Fail, err.Error()
			c.Remedy = "check the name in --endpoint or AWS_ENDPOINT_URL, /etc/resolv.conf and /etc/hosts"
			r.add(c)
			return
		}
		c.Fact = fmt.Sprintf("%s is %s (%s)", host, joined(r.addrs), millis(time.Since(start)))
	}
	r.add(c)
	r.findRoutes()
	r.proxy()
}

func (r *run) findRoutes() {
	c := Check{Group: groupNetwork, Name: "route", Status: OK}
	var bad []string
	for _, a := range r.addrs {
		route, err := routeTo(a)
		if err != nil {
			bad = append(bad, err.Error())
			continue
		}
		r.routes = append(r.routes, route)
	}
	switch {
	case len(r.routes) == 0:
		c.Status, c.Fact = Fail, strings.Join(bad, "; ")
		c.Remedy = "ip route get " + r.addrs[0].Unmap().String() + "; bring the interface up or add a route"
	default:
		c.Fact = r.routes[0].String()
		for _, route := range r.routes[1:] {
			c.Details = append(c.Details, route.String())
		}
		c.Details = append(c.Details, bad...)
	}
	r.add(c)
}

func routeTo(a netip.Addr) (Route, error) {
	a = a.Unmap()
	routes, err := netlink.RouteGet(net.IP(a.AsSlice()))
	if err != nil {
		return Route{}, fmt.Errorf("route to %s: %w", a, err)
	}
	if len(routes) == 0 {
		return Route{}, fmt.Errorf("no route to %s", a)
	}
	out := Route{To: a, NetDev: fmt.Sprintf("interface %d", routes[0].LinkIndex)}
	if ifc, err := net.InterfaceByIndex(routes[0].LinkIndex); err == nil {
		out.NetDev = ifc.Name
	}
	if src, ok := netip.AddrFromSlice(routes[0].Src); ok {
		out.Source = src.Unmap()
	}
	if gw, ok := netip.AddrFromSlice(routes[0].Gw); ok {
		out.Gateway = gw.Unmap()
	}
	return out, nil
}

// proxy tells of one that HTTP requests take; those of RDMA never do.
func (r *run) proxy() {
	req := &http.Request{URL: r.config.Endpoint}
	p, err := http.ProxyFromEnvironment(req)
	if err != nil || p == nil {
		return
	}
	r.add(Check{
		Group: groupNetwork, Name: "proxy", Status: Warn,
		Fact:   "HTTP requests go through " + p.Redacted() + "; RDMA control requests go directly",
		Remedy: "if the endpoint is near, add " + r.config.Endpoint.Hostname() + " to NO_PROXY",
	})
}

func joined(addrs []netip.Addr) string {
	var s []string
	for _, a := range addrs {
		s = append(s, a.Unmap().String())
	}
	return strings.Join(s, ", ")
}

// millis is d as people compare it.
func millis(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}
