//go:build cgo

package ibv

/*
#cgo LDFLAGS: -ldl
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"s3rdmafs/verbs"
)

// library is an opened libibverbs with the sysfs that belongs to it. It stays
// open as long as the process.
type library struct {
	lib     *C.struct_shim_lib
	sysfs   sysfs
	missing []string // optional symbols that it has not
}

var systemLibrary = sync.OnceValues(func() (*library, error) {
	return loadLibrary(libraryName, defaultSysfs)
})

func loadLibrary(path string, root sysfs) (*library, error) {
	cpath, err := unix.BytePtrFromString(path)
	if err != nil {
		return nil, fmt.Errorf("%w: library path %q", verbs.ErrInvalid, path)
	}
	l := &library{sysfs: root}
	var buf [512]byte
	msg := (*C.char)(unsafe.Pointer(&buf[0]))
	if C.shim_load((*C.char)(unsafe.Pointer(cpath)), &l.lib, msg, C.size_t(len(buf))) != 0 {
		return nil, fmt.Errorf("%w: %s", verbs.ErrUnsupported, unix.ByteSliceToString(buf[:]))
	}
	C.shim_missing(l.lib, msg, C.size_t(len(buf)))
	l.missing = strings.Fields(unix.ByteSliceToString(buf[:]))
	return l, nil
}

// List reads all devices of this machine. A machine without devices gives
// an empty list; one without libibverbs, and a build without its header or cgo,
// gives verbs.ErrUnsupported. Each device is opened and closed for it.
func List() ([]DeviceInfo, error) {
	l, err := systemLibrary()
	if err != nil {
		return nil, err
	}
	return l.list()
}

// Open opens the device called name. verbs.ErrNoDevice names those that
// exist; verbs.ErrUnsupported is as for List, or an iWARP device, whose RC
// connections cannot be made from tokens. The caller owns the device.
func Open(name string) (verbs.Device, error) {
	l, err := systemLibrary()
	if err != nil {
		return nil, err
	}
	return l.open(name)
}

// devices calls f for each device until f returns false. The list is valid
// only during the call; a device opened from it lives on.
func (l *library) devices(f func(list unsafe.Pointer, i int, name string) bool) error {
	var list unsafe.Pointer
	var n C.int
	switch errno := unix.Errno(C.shim_device_list(l.lib, &list, &n)); errno {
	case 0:
	case unix.ENOSYS, unix.ENOENT:
		return nil // the kernel has no RDMA
	default:
		return wrap("ibv_get_device_list", errno)
	}
	defer C.shim_free_device_list(l.lib, list)
	for i := range int(n) {
		if !f(list, i, C.GoString(C.shim_device_name(l.lib, list, C.int(i)))) {
			break
		}
	}
	return nil
}

func (l *library) list() ([]DeviceInfo, error) {
	var infos []DeviceInfo
	err := l.devices(func(list unsafe.Pointer, i int, name string) bool {
		info := DeviceInfo{Name: name, NUMANode: l.sysfs.numaNode(name)}
		info.Err = l.describe(list, i, &info)
		infos = append(infos, info)
		return true
	})
	return infos, err
}

func (l *library) describe(list unsafe.Pointer, i int, info *DeviceInfo) error {
	d, err := l.openAt(list, i, info.Name)
	if err != nil {
		return err
	}
	defer d.Close()
	info.Attr = d.attr
	for n := 1; n <= d.attr.NumPorts; n++ {
		p := PortInfo{Port: uint8(n)}
		if p.Attr, err = d.Port(p.Port); err != nil {
			return err
		}
		if p.GIDs, err = d.GIDs(p.Port); err != nil {
			return err
		}
		info.Ports = append(info.Ports, p)
	}
	return nil
}

func (l *library) open(name string) (verbs.Device, error) {
	var d *device
	var names []string
	var openErr error
	err := l.devices(func(list unsafe.Pointer, i int, n string) bool {
		names = append(names, n)
		if n != name {
			return true
		}
		d, openErr = l.openAt(list, i, n)
		return false
	})
	switch {
	case err != nil:
		return nil, err
	case openErr != nil:
		return nil, openErr
	case d != nil:
		return d, nil
	case len(names) == 0:
		return nil, fmt.Errorf("%w: %q; libibverbs sees none", verbs.ErrNoDevice, name)
	}
	return nil, fmt.Errorf("%w: %q; there are %s", verbs.ErrNoDevice, name, strings.Join(names, ", "))
}
