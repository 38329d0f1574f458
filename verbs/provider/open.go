package provider

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/Mellanox/rdmamap"

	"s3rdmafs/verbs"
	"s3rdmafs/verbs/ibv"
	"s3rdmafs/verbs/shm"
)

// Names that Open takes beside those of devices.
const (
	Auto     = "auto"
	Software = "shm"
)

// resolveTimeout bounds the look-up of the endpoint's name.
const resolveTimeout = 10 * time.Second

// system is what the choice depends on.
type system struct {
	list    func() ([]ibv.DeviceInfo, error)
	open    func(name string) (verbs.Device, error)
	shm     func(*slog.Logger) (verbs.Device, error)
	resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	route   func(netip.Addr) (route, error)
	// deviceOf returns the RDMA device of a netdev; "" or an error: none.
	deviceOf func(netdev string) (string, error)
	options  Options
}

var thisMachine = system{
	list: ibv.List,
	open: ibv.Open,
	shm: func(log *slog.Logger) (verbs.Device, error) {
		return shm.Open(shm.Options{Logger: log})
	},
	resolve:  resolve,
	route:    lookupRoute,
	deviceOf: rdmamap.GetRdmaDeviceForNetdevice,
}

// Open opens a device for transfers with endpointHost, a name or an address,
// and chooses its port and GID. The caller owns the device. name is one of
//
//   - "shm": the software device;
//   - "auto": the real device whose netdev routes to the endpoint, or has the
//     endpoint's address when that is on this machine. When there is none: the
//     software device if the endpoint is on this machine, else verbs.ErrNoDevice.
//     Without a host ("", or the unspecified address of a server that listens
//     everywhere): the first real device with an active port, else the software
//     device;
//   - the name of a device. The error for an unknown one lists those that exist.
//     endpointHost then only helps to choose port and GID.
func Open(name, endpointHost string, log *slog.Logger) (verbs.Device, Choice, error) {
	return OpenWith(name, endpointHost, Options{}, log)
}

// OpenWith is Open with some of the choice made by the user. The error wraps
// verbs.ErrInvalid when the device cannot do as o says.
func OpenWith(name, endpointHost string, o Options, log *slog.Logger) (verbs.Device, Choice, error) {
	if log == nil {
		log = slog.Default()
	}
	s := thisMachine
	s.options = o
	return s.openFor(name, endpointHost, log)
}

// MemlockLimit returns how many bytes this process may register. unlimited is
// true when no limit applies, also because of CAP_IPC_LOCK.
func MemlockLimit() (limit uint64, unlimited bool) { return verbs.MemlockLimit() }

func (s *system) openFor(name, host string, log *slog.Logger) (verbs.Device, Choice, error) {
	switch name {
	case Software:
		return s.openSoftware(log, "asked for by name")
	case Auto:
		return s.openAuto(host, log)
	}
	dev, err := s.open(name)
	if err != nil {
		return nil, Choice{}, s.explain(name, err)
	}
	return s.chosen(dev, s.firstRoute(host), "asked for by name")
}

// chosen closes dev when nothing on it can be chosen.
func (s *system) chosen(dev verbs.Device, r route, reason string) (verbs.Device, Choice, error) {
	c, err := choose(dev, r, s.options)
	if err != nil {
		return nil, Choice{}, errors.Join(err, dev.Close())
	}
	c.Reason = reason
	return dev, c, nil
}

func (s *system) openSoftware(log *slog.Logger, reason string) (verbs.Device, Choice, error) {
	dev, err := s.shm(log)
	if err != nil {
		return nil, Choice{}, fmt.Errorf("open software device: %w", err)
	}
	return s.chosen(dev, route{}, reason)
}

// explain adds the names of the existing devices to the error for name.
func (s *system) explain(name string, err error) error {
	if !errors.Is(err, verbs.ErrNoDevice) && !errors.Is(err, verbs.ErrUnsupported) {
		return err
	}
	var names []string
	infos, _ := s.list() // fails where Open failed, for the same reason
	for _, i := range infos {
		names = append(names, i.Name)
	}
	if slices.Contains(names, name) {
		return err
	}
	names = append(names, Software)
	if errors.Is(err, verbs.ErrNoDevice) {
		return fmt.Errorf("%w: %q; devices here: %s", verbs.ErrNoDevice, name, strings.Join(names, ", "))
	}
	return fmt.Errorf("open %q: %w; devices here: %s", name, err, strings.Join(names, ", "))
}

// firstRoute returns the route to host, zero when it cannot be found.
func (s *system) firstRoute(host string) route {
	addrs, err := s.addresses(host)
	if err != nil {
		return route{}
	}
	for _, a := range addrs {
		if r, err := s.route(a); err == nil {
			return r
		}
	}
	return route{}
}

// addresses returns none when host stands for no or every address.
func (s *system) addresses(host string) ([]netip.Addr, error) {
	if host == "" {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), resolveTimeout)
	defer cancel()
	addrs, err := s.resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(addrs, netip.Addr.IsUnspecified), nil
}

func (s *system) openAuto(host string, log *slog.Logger) (verbs.Device, Choice, error) {
	addrs, err := s.addresses(host)
	if err != nil {
		return nil, Choice{}, fmt.Errorf("%w for %s: %w", verbs.ErrNoDevice, host, err)
	}
	if len(addrs) == 0 {
		return s.openAny(log)
	}
	local := false
	var why []string
	for _, a := range addrs {
		r, err := s.route(a)
		if err != nil {
			why = append(why, err.Error())
			continue
		}
		local = local || r.local
		dev, c, err := s.openOn(r, a)
		if err == nil {
			return dev, c, nil
		}
		if errors.Is(err, verbs.ErrInvalid) {
			return nil, Choice{}, err
		}
		why = append(why, err.Error())
	}
	reasons := strings.Join(slices.Compact(why), "; ")
	if local {
		return s.openSoftware(log, fmt.Sprintf("%s is this machine; %s", host, reasons))
	}
	return nil, Choice{}, fmt.Errorf("%w for %s: %s", verbs.ErrNoDevice, host, reasons)
}

// openOn opens the real device of the route to a.
func (s *system) openOn(r route, a netip.Addr) (verbs.Device, Choice, error) {
	if r.netdev == "" {
		return nil, Choice{}, errors.New("the loopback netdev has no RDMA device")
	}
	name, err := s.deviceOf(r.netdev)
	if err != nil || name == "" {
		return nil, Choice{}, fmt.Errorf("netdev %s towards %s has no RDMA device", r.netdev, a)
	}
	dev, err := s.open(name)
	if err != nil {
		return nil, Choice{}, err
	}
	return s.chosen(dev, r, fmt.Sprintf("netdev %s leads to %s", r.netdev, a))
}

// openAny opens the first real device that works, or the software device.
func (s *system) openAny(log *slog.Logger) (verbs.Device, Choice, error) {
	infos, err := s.list()
	reason := "no real RDMA device"
	if err != nil {
		reason = err.Error()
	}
	for _, i := range infos {
		dev, err := s.open(i.Name)
		if err == nil {
			var c Choice
			if dev, c, err = s.chosen(dev, route{}, "first device with an active port"); err == nil {
				return dev, c, nil
			}
		}
		reason += "; " + err.Error()
	}
	return s.openSoftware(log, reason)
}
