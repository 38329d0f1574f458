package verbs_test

import (
	"errors"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"s3rdmafs/verbs"
)

// policyAt asks the kernel which pages an address is to get.
func policyAt(t *testing.T, p *byte) (mode int, nodes [16]uint64) {
	t.Helper()
	const byAddress = 2 // MPOL_F_ADDR
	var m int32
	_, _, errno := unix.Syscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&m)), uintptr(unsafe.Pointer(&nodes[0])),
		uintptr(len(nodes)*64), uintptr(unsafe.Pointer(p)), byAddress, 0)
	if errno != 0 {
		t.Fatalf("get_mempolicy: %v", errno)
	}
	return int(m), nodes
}

func TestMemoryBind(t *testing.T) {
	m, err := verbs.NewMemory("test", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, m)
	if err := m.Bind(0, 4096, -1); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("node -1: %v", err)
	}
	const half = 1 << 19
	err = m.Bind(half, half, 0)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		t.Skip("this kernel or container does not let a process choose NUMA nodes: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if mode, nodes := policyAt(t, &m.Bytes()[half]); mode != unix.MPOL_PREFERRED || nodes[0] != 1 {
		t.Errorf("bound part: policy %d, nodes %v", mode, nodes)
	}
	if mode, _ := policyAt(t, &m.Bytes()[0]); mode == unix.MPOL_PREFERRED {
		t.Error("the other part is bound, too")
	}
	if err := m.Bind(0, half, 1000); err == nil {
		t.Error("node 1000 exists")
	}
	m.Bytes()[0], m.Bytes()[half] = 1, 2 // pages can be had in any case
}
