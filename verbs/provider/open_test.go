package provider

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/Mellanox/rdmamap"

	"s3rdmafs/verbs"
	"s3rdmafs/verbs/ibv"
)

// stubDevice answers the questions that a choice asks.
type stubDevice struct {
	verbs.Device
	name   string
	ports  []ibv.PortInfo
	closed bool
}

func (d *stubDevice) Name() string           { return d.name }
func (d *stubDevice) Attr() verbs.DeviceAttr { return verbs.DeviceAttr{NumPorts: len(d.ports)} }
func (d *stubDevice) Close() error           { d.closed = true; return nil }

func (d *stubDevice) Port(n uint8) (verbs.PortAttr, error)   { return d.ports[n-1].Attr, nil }
func (d *stubDevice) GIDs(n uint8) ([]verbs.GIDEntry, error) { return d.ports[n-1].GIDs, nil }

func activePort(netdev string, addrs ...string) ibv.PortInfo {
	p := ibv.PortInfo{Attr: verbs.PortAttr{State: verbs.PortActive, ActiveMTU: verbs.MTU4096, MaxMsgSz: 1 << 30}}
	for i, a := range addrs {
		p.GIDs = append(p.GIDs, verbs.GIDEntry{Index: i, GID: gid(a), Type: verbs.GIDRoCEv2, NetDev: netdev})
	}
	return p
}

// world is a machine with two cards: mlx0 with a port down on netdev eth9, and
// mlx1 with two active ports on eth1 and eth2.
type world struct {
	system
	devices map[string]*stubDevice
}

func newWorld() *world {
	down := activePort("eth9", "fe80::9")
	down.Attr.State = verbs.PortDown
	w := &world{devices: map[string]*stubDevice{
		"mlx0": {name: "mlx0", ports: []ibv.PortInfo{down}},
		"mlx1": {name: "mlx1", ports: []ibv.PortInfo{
			activePort("eth1", "fe80::1", "::ffff:10.1.0.1", "::ffff:10.1.0.7"),
			activePort("eth2", "fe80::2", "::ffff:10.2.0.1"),
		}},
		"shm": {name: "shm", ports: []ibv.PortInfo{activePort("", "fd73:686d::1")}},
	}}
	w.system = system{
		list: func() ([]ibv.DeviceInfo, error) {
			return []ibv.DeviceInfo{{Name: "mlx0", NUMANode: -1}, {Name: "mlx1", NUMANode: 1}}, nil
		},
		open: func(name string) (verbs.Device, error) {
			if d := w.devices[name]; d != nil && name != "shm" {
				return d, nil
			}
			return nil, fmt.Errorf("%w: %q", verbs.ErrNoDevice, name)
		},
		shm: func(*slog.Logger) (verbs.Device, error) { return w.devices["shm"], nil },
		resolve: func(ctx context.Context, host string) ([]netip.Addr, error) {
			switch host {
			case "two.example":
				return []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("10.2.0.9")}, nil
			case "nowhere.example":
				return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
			}
			return resolve(ctx, host)
		},
		route: func(a netip.Addr) (route, error) {
			own := netip.MustParseAddr("10.1.0.1")
			switch {
			case a.IsLoopback():
				return route{local: true, src: a}, nil
			case a == own:
				return route{netdev: "eth1", local: true, src: a}, nil
			case a == netip.MustParseAddr("10.9.0.1"):
				return route{netdev: "eth9", local: true, src: a}, nil
			case a == netip.MustParseAddr("10.1.0.50"):
				return route{netdev: "eth1", src: netip.MustParseAddr("10.1.0.7")}, nil
			case netip.MustParsePrefix("10.1.0.0/16").Contains(a):
				return route{netdev: "eth1", src: own}, nil
			case netip.MustParsePrefix("10.2.0.0/16").Contains(a):
				return route{netdev: "eth2"}, nil
			case a.Is4():
				return route{netdev: "eth0"}, nil
			}
			return route{}, errors.New("network is unreachable")
		},
		deviceOf: func(netdev string) (string, error) {
			switch netdev {
			case "eth1", "eth2":
				return "mlx1", nil
			case "eth9":
				return "mlx0", nil
			}
			return "", errors.New("rdma device not found for netdev " + netdev)
		},
	}
	return w
}

func (w *world) openFor(name, host string) (verbs.Device, Choice, error) {
	return w.system.openFor(name, host, slog.New(slog.DiscardHandler))
}

func TestOpen(t *testing.T) {
	for _, c := range []struct {
		name, device, host string
		want               string // device
		port               uint8
		index              int
		reason             string
	}{
		{"by route", "auto", "10.1.0.20", "mlx1", 1, 1, "netdev eth1 leads to 10.1.0.20"},
		{"second port", "auto", "10.2.0.20", "mlx1", 2, 1, "eth2"},
		{"source address of the route", "auto", "10.1.0.50", "mlx1", 1, 2, "eth1"},
		{"second address of a name", "auto", "two.example", "mlx1", 2, 1, "10.2.0.9"},
		{"own address of a card", "auto", "10.1.0.1", "mlx1", 1, 1, "eth1"},
		{"loopback", "auto", "127.0.0.1", "shm", 1, 0, "127.0.0.1 is this machine"},
		{"bracketed loopback", "auto", "[::1]", "shm", 1, 0, "loopback"},
		{"own address, port down", "auto", "10.9.0.1", "shm", 1, 0, "port 1 is DOWN"},
		{"listening everywhere", "auto", "0.0.0.0", "mlx1", 1, 1, "first device"},
		{"no host", "auto", "", "mlx1", 1, 1, "first device"},
		{"software by name", "shm", "10.1.0.20", "shm", 1, 0, "by name"},
		{"card by name", "mlx1", "10.2.0.20", "mlx1", 2, 1, "by name"},
		{"card by name, other route", "mlx1", "192.0.2.1", "mlx1", 1, 1, "by name"},
		{"card by name, unknown host", "mlx1", "nowhere.example", "mlx1", 1, 1, "by name"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dev, got, err := newWorld().openFor(c.device, c.host)
			if err != nil {
				t.Fatal(err)
			}
			if dev.Name() != c.want || got.Port != c.port || got.GIDIndex != c.index || !strings.Contains(got.Reason, c.reason) {
				t.Errorf("%s %+v", dev.Name(), got)
			}
			if dev.(*stubDevice).closed {
				t.Error("the device is closed")
			}
			if got.GID != dev.(*stubDevice).ports[c.port-1].GIDs[c.index].GID || got.MTU != verbs.MTU4096 || got.MaxMsgSz != 1<<30 {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestOpenErrors(t *testing.T) {
	for _, c := range []struct {
		name, device, host string
		want               error
		text               string
	}{
		{"no card on the route", "auto", "192.0.2.1", verbs.ErrNoDevice, "netdev eth0 towards 192.0.2.1 has no RDMA device"},
		{"no route", "auto", "2001:db8::1", verbs.ErrNoDevice, "unreachable"},
		{"no such host", "auto", "nowhere.example", verbs.ErrNoDevice, "no such host"},
		{"unknown device", "mlx7", "10.1.0.20", verbs.ErrNoDevice, `"mlx7"; devices here: mlx0, mlx1, shm`},
		{"port down", "mlx0", "10.1.0.20", verbs.ErrUnreachable, "mlx0 has no active port with a GID (port 1 is DOWN)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld()
			_, _, err := w.openFor(c.device, c.host)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v", err)
			}
			if d := w.devices[c.device]; d != nil && !d.closed {
				t.Error("the device was left open")
			}
		})
	}
}

func TestOpenWithoutVerbs(t *testing.T) {
	w := newWorld()
	broken := fmt.Errorf("%w: built without cgo", verbs.ErrUnsupported)
	w.list = func() ([]ibv.DeviceInfo, error) { return nil, broken }
	w.open = func(string) (verbs.Device, error) { return nil, broken }
	if _, _, err := w.openFor("mlx1", "10.1.0.20"); !errors.Is(err, verbs.ErrUnsupported) || !strings.HasSuffix(err.Error(), "devices here: shm") {
		t.Errorf("by name: %v", err)
	}
	if _, _, err := w.openFor("auto", "10.1.0.20"); !errors.Is(err, verbs.ErrNoDevice) || !strings.Contains(err.Error(), "without cgo") {
		t.Errorf("by route: %v", err)
	}
	for _, host := range []string{"", "10.1.0.1"} {
		dev, c, err := w.openFor("auto", host)
		if err != nil || dev.Name() != "shm" || !strings.Contains(c.Reason, "without cgo") {
			t.Errorf("host %q: %+v, %v", host, c, err)
		}
	}
}

func TestPathMTU(t *testing.T) {
	for active, want := range map[verbs.MTU]verbs.MTU{
		0: verbs.MTU1024, verbs.MTU256: verbs.MTU1024, verbs.MTU512: verbs.MTU512, verbs.MTU4096: verbs.MTU4096, 6: verbs.MTU1024,
	} {
		if got := pathMTU(active); got != want {
			t.Errorf("active %d: %d, want %d", active, got, want)
		}
	}
}

// TestThisMachine opens the software device for an endpoint on loopback,
// through the kernel's routing.
func TestThisMachine(t *testing.T) {
	for _, name := range []string{"auto", "shm"} {
		dev, c, err := Open(name, "127.0.0.1", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if dev.Name() != "shm" || c.GIDType != verbs.GIDSoftware || FamilyOf(c.GID) != FamilySoftware || c.Port != 1 {
			t.Errorf("%s: %s %+v", name, dev.Name(), c)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
	_, _, err := Open("nosuchdevice0", "127.0.0.1", nil)
	if err == nil || !strings.Contains(err.Error(), "shm") {
		t.Errorf("unknown device: %v", err)
	}
}

func TestRouteOfOwnAddress(t *testing.T) {
	r, err := lookupRoute(netip.MustParseAddr("127.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	if !r.local || r.netdev != "" {
		t.Errorf("loopback: %+v", r)
	}
	name, addr := ownAddress(t)
	if r, err = lookupRoute(addr); err != nil {
		t.Fatal(err)
	}
	if !r.local || r.netdev != name {
		t.Errorf("%s: %+v, want netdev %s", addr, r, name)
	}
	if r, err = lookupRoute(netip.MustParseAddr("fe80::1%" + name)); err != nil || r.netdev != name || r.local {
		t.Errorf("link-local with zone %s: %+v, %v", name, r, err)
	}
}

// ownAddress returns an Ethernet netdev of this machine and its IPv4 address.
func ownAddress(t *testing.T) (string, netip.Addr) {
	t.Helper()
	ifcs, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, ifc := range ifcs {
		if ifc.Flags&net.FlagLoopback != 0 || ifc.Flags&net.FlagUp == 0 || len(ifc.HardwareAddr) != 6 {
			continue
		}
		addrs, err := ifc.Addrs()
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
				return ifc.Name, p.Addr()
			}
		}
	}
	t.Skip("this machine has no Ethernet netdev with an IPv4 address")
	return "", netip.Addr{}
}

// fakeSysfs makes rdmamap see one RDMA device, rdma0, on netdev.
func fakeSysfs(t *testing.T, netdev string) {
	t.Helper()
	root := t.TempDir()
	real, class := filepath.Join(root, "devices", "rdma0"), filepath.Join(root, "class")
	for path, text := range map[string]string{
		"ports/1/gid_attrs/ndevs/0": netdev + "\n",
		"device/numa_node":          "1\n",
	} {
		path = filepath.Join(real, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(class, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(real, filepath.Join(class, "rdma0")); err != nil {
		t.Fatal(err)
	}
	old := rdmamap.RdmaClassDir
	rdmamap.RdmaClassDir = class
	t.Cleanup(func() { rdmamap.RdmaClassDir = old })
}

// TestRDMAMap goes from an address over its netdev to the RDMA device, with
// the kernel's netdevs and a sysfs made for the test.
func TestRDMAMap(t *testing.T) {
	netdev, addr := ownAddress(t)
	fakeSysfs(t, netdev)
	s := thisMachine
	s.open = func(name string) (verbs.Device, error) {
		return &stubDevice{name: name, ports: []ibv.PortInfo{activePort("other", "fe80::1"), activePort(netdev, "::ffff:"+addr.String())}}, nil
	}
	dev, c, err := s.openFor("auto", addr.String(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if dev.Name() != "rdma0" || c.Port != 2 || c.NetDev != netdev || c.NUMANode != 1 || c.GID.Addr().Unmap() != addr {
		t.Errorf("%s %+v", dev.Name(), c)
	}
}

func TestList(t *testing.T) {
	netdev, _ := ownAddress(t)
	fakeSysfs(t, netdev)
	w := newWorld()
	w.deviceOf = func(n string) (string, error) {
		if n == "eth1" || n == "eth2" {
			return "mlx1", nil
		}
		return rdmamap.GetRdmaDeviceForNetdevice(n)
	}
	infos, err := w.infos(append(rdmamap.GetRdmaDeviceList(), "mlx1"), []string{"eth1", "eth2", netdev})
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		name, provider string
		node           int
		netdevs        []string
		usable         bool
	}
	var got []row
	for _, i := range infos {
		got = append(got, row{i.Name, i.Provider, i.NUMANode, i.NetDevs, i.Err == nil})
	}
	want := []row{
		{"mlx0", "ibv", -1, nil, true},
		{"mlx1", "ibv", 1, []string{"eth1", "eth2"}, true},
		{"rdma0", "ibv", 1, []string{netdev}, false},
		{"shm", "shm", -1, nil, true},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	if !errors.Is(infos[2].Err, errNotInVerbs) {
		t.Errorf("rdma0: %v", infos[2].Err)
	}
	if p := infos[3].Ports; len(p) != 1 || len(p[0].GIDs) != 1 {
		t.Errorf("software ports: %+v", p)
	}
	w.list = func() ([]ibv.DeviceInfo, error) { return nil, verbs.ErrUnsupported }
	infos, err = w.infos([]string{"rdma0"}, nil)
	if !errors.Is(err, verbs.ErrUnsupported) || len(infos) != 2 || !errors.Is(infos[0].Err, verbs.ErrUnsupported) {
		t.Errorf("without libibverbs: %+v, %v", infos, err)
	}
}

func TestListThisMachine(t *testing.T) {
	infos, err := List()
	if err != nil && !errors.Is(err, verbs.ErrUnsupported) {
		t.Fatal(err)
	}
	i := slices.IndexFunc(infos, func(i Info) bool { return i.Provider == "shm" })
	if i != len(infos)-1 || infos[i].Err != nil || infos[i].Ports[0].GIDs[0].Type != verbs.GIDSoftware {
		t.Errorf("%+v", infos)
	}
}
