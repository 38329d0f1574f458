package doctor

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"s3rdmafs/store"
	"s3rdmafs/verbs"
	"s3rdmafs/verbs/provider"
)

const (
	nodeGlob       = "/dev/infiniband/uverbs*"
	sysfsGlob      = "/sys/class/infiniband_verbs/uverbs*"
	noKernelDevice = "the kernel has no RDMA device"

	inDocker = "in a container: docker run --device /dev/infiniband/uverbs0 --cap-add IPC_LOCK"
)

// libraryGlobs are where distributions put the drivers of libibverbs.
var libraryGlobs = []string{"/usr/lib/*/libibverbs/*-rdmav*.so", "/usr/lib64/libibverbs/*-rdmav*.so", "/usr/lib/libibverbs/*-rdmav*.so"}

// rdma looks at the devices and chooses as the mount would.
func (r *run) rdma(context.Context) {
	if r.o.RDMA == store.ModeOff {
		r.add(Check{Group: groupRDMA, Name: "device", Status: Skip, Fact: "RDMA is switched off"})
		return
	}
	chooseErr := r.choose()
	infos, listErr := provider.List()
	r.library(infos, listErr)
	r.nodes()
	for _, i := range infos {
		if i.Provider != "shm" || r.uses(i.Name) {
			r.ports(i)
		}
	}
	if chooseErr != nil {
		r.notChosen(chooseErr)
		return
	}
	for _, l := range r.rails {
		r.chosen(l)
	}
	r.memlock()
}

// choose opens the devices as the mount would, and closes them again.
func (r *run) choose() error {
	specs, err := provider.ParseSpecs(r.o.Device, r.o.Path)
	if err != nil {
		return err
	}
	var rails []rail
	for _, s := range specs {
		dev, choice, err := provider.OpenWith(s.Name, r.config.Endpoint.Hostname(), s.Options, r.o.Logger)
		if err != nil {
			return err
		}
		rails = append(rails, rail{dev.Name(), choice})
		if err := dev.Close(); err != nil {
			return err
		}
	}
	r.rails = rails
	return nil
}

func (r *run) uses(device string) bool {
	return slices.ContainsFunc(r.rails, func(l rail) bool { return l.device == device })
}

// realNeeded is the status of a fault of real devices.
func (r *run) realNeeded() Status {
	if len(r.rails) > 0 {
		return OK // another one, or the software device, does it
	}
	return r.withoutRDMA()
}

func (r *run) library(infos []provider.Info, listErr error) {
	c := Check{Group: groupRDMA, Name: "libibverbs", Status: OK}
	var drivers []string
	for _, g := range libraryGlobs {
		paths, _ := filepath.Glob(g)
		for _, p := range paths {
			name, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(p), "lib"), "-rdmav")
			drivers = append(drivers, name)
		}
	}
	slices.Sort(drivers)
	drivers = slices.Compact(drivers)
	const install = "install rdma-core (Debian: libibverbs1 ibverbs-providers; Fedora: libibverbs)"
	unseen := slices.ContainsFunc(infos, func(i provider.Info) bool { return i.Err != nil && i.Provider == "ibv" })
	switch {
	case listErr != nil:
		c.Status, c.Fact, c.Remedy = r.realNeeded(), listErr.Error(), install
	case len(drivers) == 0:
		c.Status, c.Fact, c.Remedy = r.realNeeded(), "loads, but no driver library was found where they usually are", install
	default:
		c.Fact = fmt.Sprintf("loads; %s %s", fmt.Sprintf("drivers (%d)", len(drivers)), strings.Join(drivers, " "))
		if unseen {
			c.Status, c.Remedy = Warn, "a device below is not usable: its driver library must be of the same rdma-core as libibverbs"
		}
	}
	r.add(c)
}

// nodes compares the kernel's device nodes with those that are in /dev here.
func (r *run) nodes() {
	c := Check{Group: groupRDMA, Name: "nodes", Status: OK}
	kernel, _ := filepath.Glob(sysfsGlob)
	var missing, denied, good []string
	for _, k := range kernel {
		node := filepath.Join(filepath.Dir(nodeGlob), filepath.Base(k))
		switch err := unix.Access(node, unix.R_OK|unix.W_OK); {
		case err == nil:
			good = append(good, filepath.Base(node))
		case errors.Is(err, unix.ENOENT):
			missing = append(missing, node)
		default:
			denied = append(denied, node)
		}
	}
	switch {
	case len(kernel) == 0:
		c.Fact = noKernelDevice
	case len(missing) > 0:
		c.Status = r.realNeeded()
		c.Fact = "the kernel has a device, this process sees no " + strings.Join(missing, ", ")
		c.Remedy = "modprobe ib_uverbs; " + inDocker
	case len(denied) > 0:
		c.Status = r.realNeeded()
		c.Fact = "no access to " + strings.Join(denied, ", ")
		c.Remedy = "chmod 666 the node, or join the group that owns it"
	default:
		c.Fact = "/dev/infiniband: " + strings.Join(good, " ")
	}
	r.add(c)
}

// ports shows the ports and GIDs of one device.
func (r *run) ports(i provider.Info) {
	c := Check{Group: groupRDMA, Name: "port", Status: OK}
	if i.Err != nil {
		c.Status, c.Fact = r.realNeeded(), fmt.Sprintf("%s is not usable: %v", i.Name, i.Err)
		if c.Status == OK {
			c.Status = Warn
		}
		c.Remedy = "see libibverbs and nodes above"
		r.add(c)
		return
	}
	for _, p := range i.Ports {
		c := Check{Group: groupRDMA, Name: "port", Status: OK}
		c.Fact = fmt.Sprintf("%s port %d: %s, %s", i.Name, p.Port, p.Attr.State, p.Attr.LinkLayer)
		if p.Attr.ActiveMTU >= verbs.MTU256 {
			c.Fact += fmt.Sprintf(", MTU %d", p.Attr.ActiveMTU.Bytes())
		}
		if p.Attr.LID != 0 {
			c.Fact += fmt.Sprintf(", LID %d", p.Attr.LID)
		}
		if p.Attr.State != verbs.PortActive {
			c.Status = r.realNeeded()
			c.Remedy = "cable, switch port, ip link set NETDEV up; on InfiniBand a subnet manager must run"
		}
		for _, g := range p.GIDs {
			c.Details = append(c.Details, r.gidLine(i.Name, p.Port, g))
		}
		r.add(c)
	}
}

func (r *run) gidLine(device string, port uint8, g verbs.GIDEntry) string {
	line := fmt.Sprintf("GID %d  %s  %s", g.Index, g.GID, g.Type)
	if g.NetDev != "" {
		line += "  " + g.NetDev
	}
	for _, l := range r.rails {
		if device == l.device && port == l.choice.Port && g.Index == l.choice.GIDIndex {
			return line + "  ← chosen"
		}
	}
	return line
}

func (r *run) chosen(l rail) {
	c := Check{Group: groupRDMA, Name: "device", Status: OK}
	c.Fact = fmt.Sprintf("%s port %d, GID %d, path MTU %d: %s", l.device, l.choice.Port, l.choice.GIDIndex, l.choice.MTU.Bytes(), l.choice.Reason)
	c.Details = []string{"this GID because: " + gidReason(l.choice)}
	if l.choice.TrafficClass != 0 || l.choice.SL != 0 {
		c.Details = append(c.Details, fmt.Sprintf("traffic class %d, service level %d", l.choice.TrafficClass, l.choice.SL))
	}
	if l.choice.NUMANode >= 0 {
		c.Details = append(c.Details, fmt.Sprintf("NUMA node %d", l.choice.NUMANode))
	}
	r.add(c)
}

func (r *run) notChosen(err error) {
	c := Check{Group: groupRDMA, Name: "device", Status: r.withoutRDMA(), Fact: err.Error()}
	if r.o.Device != provider.Auto || errors.Is(err, verbs.ErrInvalid) {
		c.Status = Fail // the mount fails, too
	}
	switch {
	case errors.Is(err, verbs.ErrUnreachable):
		c.Remedy = "bring the port up (cable, ip link set NETDEV up, subnet manager)"
	case r.o.Device != provider.Auto || errors.Is(err, verbs.ErrInvalid):
		c.Remedy = "s3rdmafs devices lists what there is"
	case r.report.Find("nodes").Fact == noKernelDevice:
		c.Remedy = "load the driver (mlx5_ib, irdma, bnxt_re, …), or for RoCE in software rdma link add rxe0 type rxe netdev NETDEV; --rdma off makes HTTP the plan"
	default:
		c.Remedy = "if another device reaches the endpoint name it with --device; --rdma off makes HTTP the plan"
	}
	r.add(c)
}

// gidReason says by which rule of protocol section 12.4 the GID was chosen.
func gidReason(c provider.Choice) string {
	if c.FixedGID() {
		return "asked for by index"
	}
	switch c.GIDType {
	case verbs.GIDSoftware:
		return "the software device has one"
	case verbs.GIDInfiniBand:
		return "lowest index of an InfiniBand port"
	}
	why := fmt.Sprintf("best of the order RoCE v2 before v1, IPv4-mapped before global before link-local: %s, %s", c.GIDType, provider.FamilyOf(c.GID))
	if c.NetDev != "" {
		why += ", on " + c.NetDev
	}
	return why
}
