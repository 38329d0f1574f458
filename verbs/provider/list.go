package provider

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"

	"github.com/Mellanox/rdmamap"

	"s3rdmafs/verbs"
	"s3rdmafs/verbs/ibv"
)

// Info is one device as libibverbs and rdmamap see it.
type Info struct {
	Name     string
	Provider string // "ibv" or "shm"
	NUMANode int    // -1: unknown
	Attr     verbs.DeviceAttr
	Ports    []ibv.PortInfo
	// NetDevs and CharDevices are what rdmamap finds for the device.
	NetDevs     []string
	CharDevices []string
	// Err is why the device cannot be used; nil: it can.
	Err error
}

var errNotInVerbs = errors.New("the kernel has this device, libibverbs does not see it (no driver library, or no access to /dev/infiniband)")

// List returns the real devices by name and, last, the software device. The
// list is good also with an error, which then says why libibverbs cannot be asked.
func List() ([]Info, error) {
	return thisMachine.infos(rdmamap.GetRdmaDeviceList(), interfaceNames())
}

func interfaceNames() []string {
	ifcs, err := net.Interfaces()
	if err != nil {
		return nil
	}
	var names []string
	for _, i := range ifcs {
		names = append(names, i.Name)
	}
	return names
}

// infos joins the view of the kernel (names of RDMA devices, of netdevs) with
// that of libibverbs.
func (s *system) infos(kernel, netdevs []string) ([]Info, error) {
	byName := map[string]*Info{}
	devices, listErr := s.list()
	for _, d := range devices {
		byName[d.Name] = &Info{Name: d.Name, Provider: "ibv", NUMANode: d.NUMANode, Attr: d.Attr, Ports: d.Ports, Err: d.Err}
	}
	for _, name := range kernel {
		i := byName[name]
		if i == nil {
			i = &Info{Name: name, Provider: "ibv", NUMANode: numaNode(name), Err: cmp.Or(listErr, errNotInVerbs)}
			byName[name] = i
		}
		i.CharDevices = rdmamap.GetRdmaCharDevices(name)
	}
	for _, n := range netdevs {
		if dev, err := s.deviceOf(n); err == nil && byName[dev] != nil {
			byName[dev].NetDevs = append(byName[dev].NetDevs, n)
		}
	}
	infos := make([]Info, 0, len(byName)+1)
	for _, i := range byName {
		infos = append(infos, *i)
	}
	slices.SortFunc(infos, func(a, b Info) int { return cmp.Compare(a.Name, b.Name) })
	return append(infos, s.softwareInfo()), listErr
}

func (s *system) softwareInfo() Info {
	i := Info{Name: Software, Provider: "shm", NUMANode: -1}
	dev, err := s.shm(slog.New(slog.DiscardHandler))
	if err != nil {
		i.Err = err
		return i
	}
	defer dev.Close()
	i.Attr = dev.Attr()
	for n := 1; n <= i.Attr.NumPorts; n++ {
		p := ibv.PortInfo{Port: uint8(n)}
		if p.Attr, err = dev.Port(p.Port); err == nil {
			p.GIDs, err = dev.GIDs(p.Port)
		}
		if err != nil {
			i.Err = fmt.Errorf("port %d: %w", n, err)
			return i
		}
		i.Ports = append(i.Ports, p)
	}
	return i
}
