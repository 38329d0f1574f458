package ibv

import "s3rdmafs/verbs"

// DeviceInfo is what List tells about one device.
type DeviceInfo struct {
	Name     string
	Attr     verbs.DeviceAttr
	NUMANode int // -1 when unknown
	Ports    []PortInfo
	// Err is why the device could not be opened or read; the fields above
	// then hold what was learned before.
	Err error
}

// PortInfo is one port of a device.
type PortInfo struct {
	Port uint8 // counted from 1
	Attr verbs.PortAttr
	GIDs []verbs.GIDEntry
}

// libraryName is what dlopen is asked for: the ABI version, never the
// unversioned name, which only development packages install.
const libraryName = "libibverbs.so.1"
