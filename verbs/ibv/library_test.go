//go:build cgo

package ibv

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"s3rdmafs/verbs"
)

// requiredSymbols reads the table of shim.c.
func requiredSymbols(t *testing.T) []string {
	t.Helper()
	src, err := os.ReadFile("shim.c")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(src), "#define REQUIRED(X)")
	table, _, ok2 := strings.Cut(table, "#define OPTIONAL(X)")
	if !ok || !ok2 {
		t.Fatal("shim.c has no symbol tables")
	}
	var names []string
	for _, m := range regexp.MustCompile(`X\([^,]*, (\w+),`).FindAllStringSubmatch(table, -1) {
		names = append(names, m[1])
	}
	if len(names) < 20 {
		t.Fatalf("only %d required symbols found", len(names))
	}
	return names
}

func TestMissingRequiredSymbol(t *testing.T) {
	for _, name := range requiredSymbols(t) {
		t.Run(name, func(t *testing.T) {
			path, _ := linkFake(t, name)
			_, err := loadLibrary(path, defaultSysfs)
			if !errors.Is(err, verbs.ErrUnsupported) || !strings.HasSuffix(err.Error(), "has no symbol "+name) {
				t.Fatalf("load without %s: %v", name, err)
			}
		})
	}
}

func TestMissingLibrary(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libibverbs.so.1")
	_, err := loadLibrary(path, defaultSysfs)
	if !errors.Is(err, verbs.ErrUnsupported) || !strings.Contains(err.Error(), path) {
		t.Fatal(err)
	}
}

// wantGIDs is the table of fake0, whose rows 2 and 4 to 7 are empty.
func wantGIDs() []verbs.GIDEntry {
	linkLocal := verbs.GID{0: 0xfe, 1: 0x80, 8: 2, 15: 1}
	return []verbs.GIDEntry{
		{Index: 0, GID: linkLocal, Type: verbs.GIDRoCEv1, NetDev: "lo"},
		{Index: 1, GID: linkLocal, Type: verbs.GIDRoCEv2, NetDev: "lo"},
		{Index: 3, GID: testGID, Type: verbs.GIDRoCEv2, NetDev: "lo"},
	}
}

func TestOptionalSymbol(t *testing.T) {
	writeTypes := func(t *testing.T, f *fake) {
		t.Helper()
		dir := filepath.Join(f.dir, "sys", "fake0", "ports", "1", "gid_attrs")
		for file, text := range map[string]string{
			"types/0": "IB/RoCE v1\n", "types/1": "RoCE v2\n", "types/3": "RoCE v2\n",
			"ndevs/0": "lo\n", "ndevs/1": "lo\n", "ndevs/3": "lo\n",
		} {
			path := filepath.Join(dir, file)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	check := func(t *testing.T, f *fake) {
		t.Helper()
		d := mustOpen(t, f, "fake0")
		defer mustClose(t, d)
		gids, err := d.GIDs(1)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(gids, wantGIDs()) {
			t.Errorf("GIDs: %v\nwant: %v", gids, wantGIDs())
		}
	}
	t.Run("present", func(t *testing.T) {
		f := newFake(t)
		if len(f.missing) != 0 {
			t.Errorf("missing: %v", f.missing)
		}
		check(t, f)
	})
	t.Run("absent", func(t *testing.T) {
		f := newFake(t, "_ibv_query_gid_table")
		writeTypes(t, f)
		if !reflect.DeepEqual(f.missing, []string{"_ibv_query_gid_table"}) {
			t.Errorf("missing: %v", f.missing)
		}
		check(t, f)
	})
	t.Run("kernel cannot", func(t *testing.T) {
		f := newFake(t)
		writeTypes(t, f)
		f.ctl.noGIDTable = int32(unix.EOPNOTSUPP)
		check(t, f)
	})
}

// TestLayout compares the numbers this project has written down with those of
// the real header, as the C compiler sees it.
func TestLayout(t *testing.T) {
	if _, err := fakeObject(); errors.Is(err, errNoCompiler) {
		t.Skip("the header can be read by a C compiler only:", err)
	}
	bin := filepath.Join(t.TempDir(), "layout")
	if err := gcc("testdata/layout.c", "-o", bin); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	var g gidRow
	want := map[string]int{
		"IBV_QPS_RESET": int(verbs.StateReset), "IBV_QPS_INIT": int(verbs.StateInit), "IBV_QPS_RTR": int(verbs.StateRTR),
		"IBV_QPS_RTS": int(verbs.StateRTS), "IBV_QPS_SQD": int(verbs.StateSQD), "IBV_QPS_SQE": int(verbs.StateSQE), "IBV_QPS_ERR": int(verbs.StateErr),
		"IBV_MTU_256": int(verbs.MTU256), "IBV_MTU_512": int(verbs.MTU512), "IBV_MTU_1024": int(verbs.MTU1024),
		"IBV_MTU_2048": int(verbs.MTU2048), "IBV_MTU_4096": int(verbs.MTU4096),
		"IBV_PORT_NOP": int(verbs.PortNop), "IBV_PORT_DOWN": int(verbs.PortDown), "IBV_PORT_INIT": int(verbs.PortInit),
		"IBV_PORT_ARMED": int(verbs.PortArmed), "IBV_PORT_ACTIVE": int(verbs.PortActive), "IBV_PORT_ACTIVE_DEFER": int(verbs.PortActiveDefer),
		"IBV_LINK_LAYER_UNSPECIFIED": int(verbs.LinkUnspecified), "IBV_LINK_LAYER_INFINIBAND": int(verbs.LinkInfiniBand),
		"IBV_LINK_LAYER_ETHERNET": int(verbs.LinkEthernet),
		"IBV_GID_TYPE_IB":         int(verbs.GIDInfiniBand), "IBV_GID_TYPE_ROCE_V1": int(verbs.GIDRoCEv1), "IBV_GID_TYPE_ROCE_V2": int(verbs.GIDRoCEv2),
		"IBV_ACCESS_LOCAL_WRITE": int(verbs.AccessLocalWrite), "IBV_ACCESS_REMOTE_WRITE": int(verbs.AccessRemoteWrite),
		"IBV_ACCESS_REMOTE_READ": int(verbs.AccessRemoteRead),
		"IBV_QP_STATE":           int(verbs.AttrState), "IBV_QP_ACCESS_FLAGS": int(verbs.AttrAccessFlags), "IBV_QP_PKEY_INDEX": int(verbs.AttrPKeyIndex),
		"IBV_QP_PORT": int(verbs.AttrPort), "IBV_QP_AV": int(verbs.AttrAV), "IBV_QP_PATH_MTU": int(verbs.AttrPathMTU),
		"IBV_QP_TIMEOUT": int(verbs.AttrTimeout), "IBV_QP_RETRY_CNT": int(verbs.AttrRetryCnt), "IBV_QP_RNR_RETRY": int(verbs.AttrRNRRetry),
		"IBV_QP_RQ_PSN": int(verbs.AttrRQPSN), "IBV_QP_MAX_QP_RD_ATOMIC": int(verbs.AttrMaxQPRdAtomic),
		"IBV_QP_MIN_RNR_TIMER": int(verbs.AttrMinRNRTimer), "IBV_QP_SQ_PSN": int(verbs.AttrSQPSN),
		"IBV_QP_MAX_DEST_RD_ATOMIC": int(verbs.AttrMaxDestRdAtomic), "IBV_QP_DEST_QPN": int(verbs.AttrDestQPN),
		"IBV_WC_SUCCESS": int(verbs.WCSuccess), "IBV_WC_LOC_PROT_ERR": int(verbs.WCLocProtErr), "IBV_WC_WR_FLUSH_ERR": int(verbs.WCWRFlushErr),
		"IBV_WC_REM_INV_REQ_ERR": int(verbs.WCRemInvReqErr), "IBV_WC_REM_ACCESS_ERR": int(verbs.WCRemAccessErr), "IBV_WC_REM_OP_ERR": int(verbs.WCRemOpErr),
		"IBV_WC_RETRY_EXC_ERR": int(verbs.WCRetryExcErr), "IBV_WC_RNR_RETRY_EXC_ERR": int(verbs.WCRNRRetryExcErr),
		"IBV_WC_FATAL_ERR": int(verbs.WCFatalErr), "IBV_WC_GENERAL_ERR": int(verbs.WCGeneralErr),
		"IBV_WC_SEND": int(verbs.WCSend), "IBV_WC_RDMA_WRITE": int(verbs.WCRDMAWrite), "IBV_WC_RECV": int(verbs.WCRecv),
		"IBV_WC_RECV_RDMA_WITH_IMM": int(verbs.WCRecvRDMAWithImm),
		"IBV_WC_GRH":                int(verbs.WCFlagGRH), "IBV_WC_WITH_IMM": int(verbs.WCFlagWithImm),
		"IBV_EVENT_CQ_ERR": evCQErr, "IBV_EVENT_QP_FATAL": evQPFatal, "IBV_EVENT_DEVICE_FATAL": evDeviceFatal,
		"IBV_EVENT_PORT_ACTIVE": evPortActive, "IBV_EVENT_PORT_ERR": evPortErr, "IBV_EVENT_GID_CHANGE": evGIDChange,
		"sizeof(struct ibv_gid_entry)": int(unsafe.Sizeof(g)),
		"ibv_gid_entry.gid":            int(unsafe.Offsetof(g.gid)), "ibv_gid_entry.gid_index": int(unsafe.Offsetof(g.index)),
		"ibv_gid_entry.port_num": int(unsafe.Offsetof(g.port)), "ibv_gid_entry.gid_type": int(unsafe.Offsetof(g._type)),
		"ibv_gid_entry.ndev_ifindex": int(unsafe.Offsetof(g.ifindex)),
	}
	seen := 0
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		i := strings.LastIndexByte(line, ' ')
		name := line[:i]
		value, err := strconv.Atoi(line[i+1:])
		if err != nil {
			t.Fatal(err)
		}
		w, ok := want[name]
		if !ok {
			t.Errorf("%s is %d in the header and nothing here", name, value)
		} else if w != value {
			t.Errorf("%s is %d in the header, %d here", name, value, w)
		}
		seen++
	}
	if seen != len(want) {
		t.Errorf("the header gave %d values, %d are written down", seen, len(want))
	}
}

func TestList(t *testing.T) {
	f := newFake(t)
	dir := filepath.Join(f.dir, "sys", "fake0", "device")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "numa_node"), []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	infos, err := f.list()
	if err != nil {
		t.Fatal(err)
	}
	if len(infos) != 3 {
		t.Fatalf("%d devices: %+v", len(infos), infos)
	}
	roce, ib, iwarp := infos[0], infos[1], infos[2]
	attr := verbs.DeviceAttr{FirmwareVersion: "1.2.3", NumPorts: 1, MaxQP: 256, MaxQPWR: 1024, MaxSGE: 8, MaxCQ: 1001, MaxCQE: 4096,
		MaxMR: 256, MaxPD: 1002, MaxMRSize: 1 << 40}
	want := DeviceInfo{Name: "fake0", Attr: attr, NUMANode: 1, Ports: []PortInfo{{
		Port: 1,
		Attr: verbs.PortAttr{State: verbs.PortActive, ActiveMTU: verbs.MTU1024, MaxMsgSz: 1 << 31, LinkLayer: verbs.LinkEthernet, GIDTblLen: 8},
		GIDs: wantGIDs(),
	}}}
	if !reflect.DeepEqual(roce, want) {
		t.Errorf("RoCE device: %+v\nwant: %+v", roce, want)
	}
	if ib.Err != nil || ib.NUMANode != -1 || len(ib.Ports) != 2 {
		t.Fatalf("InfiniBand device: %+v", ib)
	}
	if p := ib.Ports[1]; p.Attr.State != verbs.PortDown || p.Attr.LID != 0x77 || p.Attr.LinkLayer != verbs.LinkInfiniBand ||
		len(p.GIDs) != 1 || p.GIDs[0].GID[15] != 8 || p.GIDs[0].Type != verbs.GIDInfiniBand {
		t.Errorf("port 2: %+v", p)
	}
	if iwarp.Name != "fakewarp2" || !errors.Is(iwarp.Err, verbs.ErrUnsupported) {
		t.Errorf("iWARP device: %+v", iwarp)
	}
}

func TestOpenUnknown(t *testing.T) {
	f := newFake(t)
	_, err := f.open("mlx5_9")
	if !errors.Is(err, verbs.ErrNoDevice) || !strings.Contains(err.Error(), "fake0, fakeib1, fakewarp2") {
		t.Errorf("unknown device: %v", err)
	}
	f.ctl.noDevices = int32(unix.ENOSYS)
	if _, err = f.open("mlx5_9"); !errors.Is(err, verbs.ErrNoDevice) {
		t.Errorf("kernel without RDMA: %v", err)
	}
	if infos, err := f.list(); err != nil || infos != nil {
		t.Errorf("kernel without RDMA: %v, %v", infos, err)
	}
	f.ctl.noDevices = int32(unix.EACCES)
	if _, err := f.list(); !errors.Is(err, unix.EACCES) {
		t.Errorf("no access: %v", err)
	}
}
