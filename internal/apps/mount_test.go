package apps

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const bucket = "apps"

// server is a gateway process.
type server struct {
	bin, endpoint string
	env           []string
}

// startServer builds the programs of this module and starts a gateway on a
// directory of its own. It ends with the test.
func startServer(t *testing.T) *server {
	t.Helper()
	s := &server{bin: t.TempDir()}
	build := exec.Command("go", "build", "-o", s.bin+"/", "s3rdmafs/cmd/s3rdmafs", "s3rdmafs/cmd/s3rdmagw")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "AWS_") {
			s.env = append(s.env, v)
		}
	}
	s.env = append(s.env, "AWS_ACCESS_KEY_ID=apps", "AWS_SECRET_ACCESS_KEY=apps-secret-key", "AWS_REGION=us-east-1")

	log, err := os.Create(filepath.Join(t.TempDir(), "gateway.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	gw := exec.Command(filepath.Join(s.bin, "s3rdmagw"), "--dir", t.TempDir(), "--listen", "127.0.0.1:0", "--device", "shm", "--bucket", bucket)
	gw.Env, gw.Stderr = s.env, log
	out, err := gw.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := gw.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		gw.Process.Signal(os.Interrupt)
		late := time.AfterFunc(30*time.Second, func() {
			t.Error("the gateway did not end")
			gw.Process.Kill()
		})
		defer late.Stop()
		gw.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	endpoint, ok := strings.CutPrefix(strings.TrimSpace(line), "s3rdmagw listening on ")
	if !ok {
		text, _ := os.ReadFile(log.Name())
		t.Fatalf("the gateway says %q, %v\n%s", line, err, text)
	}
	s.endpoint = endpoint
	return s
}

// mount is a mount of the bucket by a process of its own.
type mount struct {
	s        *server
	dir, log string
	ended    bool
}

// mount mounts the bucket. Transfers that RDMA can do must go that way.
func (s *server) mount(t *testing.T) *mount {
	t.Helper()
	m := &mount{s: s, dir: t.TempDir(), log: filepath.Join(t.TempDir(), "mount.log")}
	m.command(t, "mount", "s3://"+bucket, m.dir, "--endpoint", s.endpoint, "--device", "shm", "--rdma", "require",
		"--cache-size", "512MiB", "--log-file", m.log)
	t.Cleanup(func() {
		if !m.ended {
			exec.Command("umount", "-l", m.dir).Run()
		}
	})
	return m
}

func (m *mount) command(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(m.s.bin, "s3rdmafs"), args...)
	cmd.Env = m.s.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("s3rdmafs %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// readLog is what the mount logged.
func (m *mount) readLog(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(m.log)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// unmount ends the mount, which must have given every pinned byte back, logged
// no error, and moved its data by RDMA.
func (m *mount) unmount(t *testing.T) {
	t.Helper()
	stats := m.stats(t)
	if stats.Store.Read.RDMA.Bytes+stats.Store.Write.RDMA.Bytes == 0 {
		t.Error("nothing went by RDMA")
	}
	if stats.Store.HTTPEligible != 0 {
		t.Errorf("%d bytes that RDMA could move went by HTTP", stats.Store.HTTPEligible)
	}
	m.command(t, "umount", m.dir)
	m.ended = true
	log := m.readLog(t)
	if !strings.Contains(log, "msg=unmounted") || !strings.Contains(log, "pinned=0") {
		t.Error("pinned memory was left")
	}
	for line := range strings.Lines(log) {
		if strings.Contains(line, "level=ERROR") {
			t.Errorf("the mount logged: %s", line)
		}
	}
}

// stats are the counters of the mount that matter here.
type stats struct {
	DirtyFiles int `json:"dirty_files"`
	Store      struct {
		Read, Write struct {
			RDMA struct{ Bytes uint64 }
		}
		HTTPEligible uint64 `json:"http_data_bytes_eligible"`
	}
}

func (m *mount) stats(t *testing.T) (s stats) {
	t.Helper()
	if err := json.Unmarshal([]byte(m.command(t, "stat", m.dir, "--json")), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// wantStored waits until nothing is left to be stored: what a mapping wrote
// after the last close goes in the background.
func (m *mount) wantStored(t *testing.T) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		dirty := m.stats(t).DirtyFiles
		if dirty == 0 {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%d files stay dirty", dirty)
		case <-tick.C:
		}
	}
}
