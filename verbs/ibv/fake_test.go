//go:build cgo

package ibv

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"s3rdmafs/verbs"
)

// control mirrors struct control of testdata/control.h.
type control struct {
	live                             [7]int32
	unacked                          int32
	noDevices                        int32
	noGIDTable                       int32
	failNth, failErrno               int32
	failOp                           [32]byte
	eventType, eventPort, eventSeqNo int32
}

var kinds = [7]string{"device list", "context", "PD", "MR", "channel", "CQ", "QP"}

// fake is one loaded stand-in for libibverbs, with its own state.
type fake struct {
	*library
	dir string
	ctl *control
}

var buildDir string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if buildDir, err = os.MkdirTemp("", "fakeverbs"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(buildDir)
		flag.Parse()
		if skip := flag.Lookup("test.skip"); skip.Value.String() == "" {
			if err := skip.Value.Set(standInSkips); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
		return m.Run()
	}())
}

var errNoCompiler = errors.New("no C compiler with <infiniband/verbs.h>")

// fakeObject compiles the stand-in once.
var fakeObject = sync.OnceValues(func() (string, error) {
	probe := exec.Command("gcc", "-E", "-o", os.DevNull, "-x", "c", "-")
	probe.Stdin = strings.NewReader("#include <infiniband/verbs.h>\n")
	if probe.Run() != nil {
		return "", errNoCompiler
	}
	obj := filepath.Join(buildDir, "fakeverbs.o")
	return obj, gcc("-Wall", "-Wextra", "-Wno-missing-field-initializers", "-O1", "-fPIC", "-fvisibility=hidden",
		"-c", "testdata/fakeverbs.c", "-o", obj)
})

func gcc(args ...string) error {
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("gcc: %w\n%s", err, out)
	}
	return nil
}

// linkFake makes a fresh copy of the stand-in without the symbols in omit, and
// tells it its directory.
func linkFake(t *testing.T, omit ...string) (path, dir string) {
	t.Helper()
	obj, err := fakeObject()
	if errors.Is(err, errNoCompiler) {
		t.Skip("the stand-in library needs gcc and libibverbs-dev:", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	script := "{ global: *; local: none;"
	for _, s := range omit {
		script += s + ";"
	}
	mapFile := filepath.Join(dir, "symbols")
	if err := os.WriteFile(mapFile, []byte(script+"};"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "control"), make([]byte, os.Getpagesize()), 0o600); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "libibverbs.so.1")
	// nodelete: its engine thread outlives a dlclose after a failed load.
	if err := gcc("-shared", "-Wl,-z,nodelete", "-Wl,--version-script="+mapFile, obj, "-o", path, "-lpthread"); err != nil {
		t.Fatal(err)
	}
	t.Setenv("S3RDMAFS_FAKE_VERBS", dir)
	return path, dir
}

// newFake loads a stand-in; at the end of the test nothing of it may be left.
func newFake(t *testing.T, omit ...string) *fake {
	t.Helper()
	path, dir := linkFake(t, omit...)
	file, err := os.OpenFile(filepath.Join(dir, "control"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	page, err := unix.Mmap(int(file.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(page) })
	f := &fake{dir: dir, ctl: (*control)(unsafe.Pointer(&page[0]))}
	if f.library, err = loadLibrary(path, sysfs(filepath.Join(dir, "sys"))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.checkClean(t) })
	return f
}

func (f *fake) checkClean(t *testing.T) {
	t.Helper()
	for i, name := range kinds {
		if n := atomic.LoadInt32(&f.ctl.live[i]); n != 0 {
			t.Errorf("%d of kind %s left", n, name)
		}
	}
	if n := atomic.LoadInt32(&f.ctl.unacked); n != 0 {
		t.Errorf("%d events not acknowledged", n)
	}
}

// fail makes the nth call of op from now on fail once.
func (f *fake) fail(op string, nth int, errno unix.Errno) {
	f.ctl.failOp = [32]byte{}
	copy(f.ctl.failOp[:], op)
	f.ctl.failErrno = int32(errno)
	atomic.StoreInt32(&f.ctl.failNth, int32(nth))
}

// raise gives every open device a port event.
func (f *fake) raise(event, port int32) {
	f.ctl.eventType, f.ctl.eventPort = event, port
	atomic.AddInt32(&f.ctl.eventSeqNo, 1)
}

// calls returns the lines of the log that begin with one of prefixes (all
// without any), oldest first.
func (f *fake) calls(t *testing.T, prefixes ...string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(f.dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSuffix(line, "\n")
		keep := len(prefixes) == 0
		for _, p := range prefixes {
			keep = keep || strings.HasPrefix(line, p)
		}
		if keep {
			lines = append(lines, line)
		}
	}
	return lines
}

func mustOpen(t *testing.T, f *fake, name string) verbs.Device {
	t.Helper()
	d, err := f.open(name)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func mustClose(t *testing.T, c interface{ Close() error }) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// rig is a complete set of objects on one device.
type rig struct {
	dev  verbs.Device
	pd   verbs.PD
	mem  *verbs.Memory
	mr   verbs.MR
	ch   verbs.CompChannel
	cq   verbs.CQ
	a, b verbs.QP
}

const remoteAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite

// build makes a rig; on failure it closes what there is and returns the error.
func (f *fake) build() (r *rig, err error) {
	r = &rig{}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if r.mem, err = verbs.NewMemory("ibv-test", 1<<16); err != nil {
		return
	}
	if r.dev, err = f.open("fake0"); err != nil {
		return
	}
	if r.pd, err = r.dev.AllocPD(); err != nil {
		return
	}
	if r.mr, err = r.pd.RegMR(r.mem, 0, 1<<16, remoteAccess); err != nil {
		return
	}
	if r.ch, err = r.dev.CreateCompChannel(); err != nil {
		return
	}
	if r.cq, err = r.dev.CreateCQ(16, r.ch); err != nil {
		return
	}
	init := verbs.QPInitAttr{SendCQ: r.cq, RecvCQ: r.cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 2, MaxRecvSGE: 1}}
	if r.a, err = r.pd.CreateQP(init); err != nil {
		return
	}
	r.b, err = r.pd.CreateQP(init)
	return
}

// close closes what exists in reverse order.
func (r *rig) close() error {
	var errs []error
	for _, c := range []interface{ Close() error }{r.b, r.a, r.cq, r.ch, r.mr, r.pd, r.dev, r.mem} {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

func newRig(t *testing.T, f *fake) *rig {
	t.Helper()
	r, err := f.build()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

var testGID = verbs.GID{10: 0xff, 11: 0xff, 12: 10, 13: 77, 14: 0, 15: 1}

// connect takes q to RTS towards peer.
func connect(t *testing.T, q, peer verbs.QP, psn, peerPSN uint32) {
	t.Helper()
	steps := []struct {
		a    verbs.QPAttr
		mask verbs.QPAttrMask
	}{
		{verbs.QPAttr{State: verbs.StateInit, Port: 1, AccessFlags: verbs.AccessRemoteWrite}, verbs.MaskInit},
		{verbs.QPAttr{State: verbs.StateRTR, AH: verbs.AHAttr{DGID: testGID, SGIDIndex: 3, HopLimit: 64, IsGlobal: true, PortNum: 1},
			PathMTU: verbs.MTU1024, DestQPN: peer.Num(), RQPSN: peerPSN, MaxDestRdAtomic: 1, MinRNRTimer: 12}, verbs.MaskRTR},
		{verbs.QPAttr{State: verbs.StateRTS, SQPSN: psn, MaxRdAtomic: 1, Timeout: 14, RetryCnt: 7, RNRRetry: 7}, verbs.MaskRTS},
	}
	for _, s := range steps {
		if err := q.Modify(s.a, s.mask); err != nil {
			t.Fatal(err)
		}
	}
}

func connected(t *testing.T, f *fake) *rig {
	t.Helper()
	r := newRig(t, f)
	connect(t, r.a, r.b, 0xaaa, 0xbbb)
	connect(t, r.b, r.a, 0xbbb, 0xaaa)
	return r
}

func openFDs(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}
