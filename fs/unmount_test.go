package fs

import (
	"context"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// needFuseControl skips where connections cannot be ended from outside.
func needFuseControl(t *testing.T) {
	t.Helper()
	if entries, err := os.ReadDir(fuseConnections); err != nil || len(entries) == 0 {
		t.Skip("needs the control file system of FUSE, mounted at " + fuseConnections)
	}
}

// Semantics "Writing": what is dirty is stored before Unmount returns, also
// when somebody else unmounts meanwhile.
func TestForeignUnmountDuringUnmount(t *testing.T) {
	w := newWorld(t)
	seen := map[string]chan struct{}{"f": make(chan struct{}), "g": make(chan struct{})}
	gate := map[string]chan struct{}{"f": make(chan struct{}), "g": make(chan struct{})}
	once := map[string]*sync.Once{"f": {}, "g": {}}
	f := w.front(func(rw http.ResponseWriter, r *http.Request) bool {
		name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
		if r.Method == http.MethodPut && gate[name] != nil {
			once[name].Do(func() { close(seen[name]) })
			<-gate[name]
		}
		return false
	})
	so := w.storeOptions()
	so.Endpoint = f.URL
	m := w.mountStore(so)
	m.ended = true
	create := func(name string) *os.File {
		t.Helper()
		file, err := os.Create(m.path(name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteString("data of " + name); err != nil {
			t.Fatal(err)
		}
		return file
	}
	open := create("f")
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	unmounted := make(chan error, 1)
	go func() { unmounted <- m.Unmount(ctx) }()
	<-seen["f"]
	late := create("g")
	go late.Close()
	<-seen["g"]
	if err := unix.Unmount(m.dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	close(gate["f"])
	go open.Close()
	select {
	case err := <-unmounted:
		t.Errorf("Unmount returns %v while data are on the way", err)
		unmounted <- nil
	case <-m.gone:
	}
	close(gate["g"])
	if err := <-unmounted; err != nil {
		t.Errorf("Unmount: %v", err)
	}
	select {
	case <-m.finished:
	default:
		t.Error("Unmount returned with work left")
	}
	w.wantObject("f", "data of f")
	w.wantObject("g", "data of g")
}

// Semantics "Writing": Unmount cuts off who still uses what somebody else has
// detached from the tree.
func TestForeignUnmountInUse(t *testing.T) {
	w := newWorld(t)
	m := w.mount()
	needFuseControl(t)
	open, err := os.Create(m.path("f"))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if _, err := open.WriteString("data"); err != nil {
		t.Fatal(err)
	}
	if err := unix.Unmount(m.dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if err := m.unmount(); err != nil {
		t.Error(err)
	}
	w.wantObject("f", "data")
	if err := open.Sync(); err == nil {
		t.Error("the file can be synced after unmount")
	}
}

// A mount that somebody put on top is left alone; the data are stored all the
// same.
func TestUnmountCovered(t *testing.T) {
	w := newWorld(t)
	m := w.mount()
	needFuseControl(t)
	m.ended = true
	open, err := os.Create(m.path("f"))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if _, err := open.WriteString("data"); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", m.dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 {
			if err := unix.Unmount(m.dir, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		}
	})
	write(t, m.path("g"), "of the other mount")
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := m.Unmount(ctx); err == nil || !strings.Contains(err.Error(), "covers") {
		t.Errorf("Unmount: %v", err)
	}
	<-m.finished
	wantFile(t, m.path("g"), "of the other mount")
	w.wantObject("f", "data")
}

// A mount that shows at another place too, as in the namespace of a container,
// ends everywhere.
func TestUnmountBound(t *testing.T) {
	w := newWorld(t)
	m := w.mount()
	needFuseControl(t)
	elsewhere := t.TempDir()
	if err := unix.Mount(m.dir, elsewhere, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(elsewhere, unix.MNT_DETACH)
	write(t, elsewhere+"/f", "data")
	if err := m.unmount(); err != nil {
		t.Error(err)
	}
	w.wantObject("f", "data")
	if _, err := os.ReadFile(elsewhere + "/f"); err == nil {
		t.Error("the file can be read after unmount")
	}
}

func TestParseMount(t *testing.T) {
	for line, want := range map[string]mountEntry{
		`98 62 0:57 / /mnt/a\040b\134 rw,nosuid shared:1 master:2 - fuse.s3rdmafs s3rdmafs:s3://b/ rw`: {57, `/mnt/a b\`, "fuse.s3rdmafs"},
		`36 35 98:0 /mnt1 /mnt2 rw,noatime - ext3 /dev/root rw`:                                        {0, "/mnt2", "ext3"},
	} {
		if got, ok := parseMount(line); !ok || got != want {
			t.Errorf("%s is %+v, %v", line, got, ok)
		}
	}
	for _, line := range []string{"", "36 35 98:0 /", "36 35 x / /mnt rw - ext3 none rw"} {
		if got, ok := parseMount(line); ok {
			t.Errorf("%q is %+v", line, got)
		}
	}
}
