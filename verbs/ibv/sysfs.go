package ibv

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"s3rdmafs/verbs"
)

// sysfs is the kernel's class directory of RDMA devices.
type sysfs string

const defaultSysfs sysfs = "/sys/class/infiniband"

func (s sysfs) read(elem ...string) string {
	b, err := os.ReadFile(filepath.Join(append([]string{string(s)}, elem...)...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// numaNode returns the NUMA node of a device, -1 when unknown.
func (s sysfs) numaNode(device string) int {
	n, err := strconv.Atoi(s.read(device, "device", "numa_node"))
	if err != nil {
		return -1
	}
	return n
}

// isSoftRoCE tells the kernel's software device, which alone names a parent.
func (s sysfs) isSoftRoCE(device string) bool { return s.read(device, "parent") != "" }

// gidType returns the RoCE version of a GID table row. A link layer without
// RoCE has only GIDs of type InfiniBand, and the kernel says "IB/RoCE v1" there.
func (s sysfs) gidType(device string, port uint8, index int, link verbs.LinkLayer) verbs.GIDType {
	t := s.read(device, "ports", strconv.Itoa(int(port)), "gid_attrs", "types", strconv.Itoa(index))
	switch {
	case t == "RoCE v2":
		return verbs.GIDRoCEv2
	case link == verbs.LinkEthernet:
		return verbs.GIDRoCEv1
	}
	return verbs.GIDInfiniBand
}

func (s sysfs) gidNetDev(device string, port uint8, index int) string {
	return s.read(device, "ports", strconv.Itoa(int(port)), "gid_attrs", "ndevs", strconv.Itoa(index))
}
