package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"s3rdmafs/internal/bench"
	"s3rdmafs/internal/doctor"
	"s3rdmafs/internal/testenv"
)

func (u *user) diagnose(t *testing.T, wantStatus int, cmd *exec.Cmd) *doctor.Report {
	t.Helper()
	out, err := cmd.Output()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != wantStatus {
		t.Errorf("exit status %d, want %d", got, wantStatus)
	}
	var r doctor.Report
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	if strings.Contains(string(out), u.env.SecretKey) {
		t.Error("the secret is shown")
	}
	return &r
}

func TestDoctor(t *testing.T) {
	u := newUser(t, testenv.Options{RDMA: true})
	source := "s3://" + u.env.NewBucket("")

	status, out := u.run("doctor", source, "--cache-size", "16MiB")
	if status != 0 || !strings.Contains(out, "no failures, no warnings") || !strings.Contains(out, "by RDMA on shm") || !strings.Contains(out, "rdma transfer") {
		t.Errorf("exit status %d:\n%s", status, out)
	}
	r := u.diagnose(t, 0, u.command("doctor", source, "--cache-size", "16MiB", "--json"))
	for _, c := range r.Checks {
		if !strings.Contains(out, c.Name) {
			t.Errorf("check %s is in JSON only", c.Name)
		}
	}

	wrong := u.command("doctor", source, "--cache-size", "16MiB", "--json")
	wrong.Env = append(wrong.Env, "AWS_SECRET_ACCESS_KEY=another")
	if c := u.diagnose(t, 1, wrong).Find("access"); c == nil || c.Status != doctor.Fail || !strings.Contains(c.Fact, "from environment") {
		t.Errorf("access with a wrong secret: %+v", c)
	}
}

// A limit below the cache is fatal only where the cache or RDMA was asked for.
func TestDoctorMemlock(t *testing.T) {
	u := newUser(t, testenv.Options{RDMA: true})
	source := "s3://" + u.env.NewBucket("")
	for _, test := range []struct {
		name   string
		args   []string
		exit   int
		status doctor.Status
	}{
		{"cache asked for", []string{"--cache-size", "64MiB"}, 1, doctor.Fail},
		{"RDMA asked for", []string{"--rdma", "require"}, 1, doctor.Fail},
		{"nothing asked for", nil, 0, doctor.Warn},
		{"small cache", []string{"--cache-size", "4MiB"}, 0, doctor.OK},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd := u.command(append([]string{"doctor", source, "--json"}, test.args...)...)
			// Root may lock any amount unless it lacks the capability.
			cmd.Args = append([]string{"setpriv", "--bounding-set", "-ipc_lock", "prlimit", "--memlock=8388608", program}, cmd.Args[1:]...)
			path, err := exec.LookPath("setpriv")
			if err != nil {
				t.Fatal(err)
			}
			cmd.Path = path
			r := u.diagnose(t, test.exit, cmd)
			c := r.Find("memlock")
			if c == nil || c.Status != test.status || test.status != doctor.OK && !strings.Contains(c.Remedy, "ulimit -l") {
				t.Errorf("memlock: %+v", c)
			}
			// The megabyte of the test itself can be pinned.
			if c := r.Find("rdma transfer"); c == nil || c.Status != doctor.OK {
				t.Errorf("rdma transfer: %+v", c)
			}
			if byHTTP := strings.Contains(r.Verdict, "by HTTP: the cache cannot be pinned"); byHTTP != (test.status == doctor.Warn) {
				t.Errorf("verdict: %s", r.Verdict)
			}
		})
	}
}

func TestDoctorStatusHelp(t *testing.T) {
	out, err := exec.Command(program, "doctor", "--wc-status", "retry_exc_err").Output()
	if err != nil || !strings.Contains(string(out), "RETRY_EXC_ERR (12)") || !strings.Contains(string(out), "4791") {
		t.Errorf("%v: %s", err, out)
	}
	out, err = exec.Command(program, "doctor", "--wc-status", "all", "--json").Output()
	var table []doctor.StatusHelp
	if err != nil || json.Unmarshal(out, &table) != nil || len(table) != len(doctor.StatusTable()) {
		t.Errorf("%v: %s", err, out)
	}
	if err := exec.Command(program, "doctor", "--wc-status", "NO_SUCH").Run(); err == nil {
		t.Error("an unknown status is no error")
	}
}

func TestBench(t *testing.T) {
	u := newUser(t, testenv.Options{RDMA: true})
	bucket := u.env.NewBucket("")
	file := filepath.Join(t.TempDir(), "result.json")
	args := []string{"bench", "s3://" + bucket, "--sizes", "64KiB,1MiB", "--concurrency", "1,2", "--ops", "get", "--time", "20ms"}

	status, out := u.run(append(args, "--json", file)...)
	if status != 0 || !strings.Contains(out, "RDMA/HTTP") || !strings.Contains(out, "1.0 MiB") {
		t.Errorf("exit status %d:\n%s", status, out)
	}
	if strings.Contains(out, "\r") {
		t.Error("a progress line where there is no terminal")
	}
	raw, err := os.ReadFile(file)
	var r bench.Result
	if err != nil || json.Unmarshal(raw, &r) != nil || len(r.Points) != 4 {
		t.Errorf("%v: %s", err, raw)
	}
	raw, err = u.command(append(args, "--json", "-", "--rdma", "off")...).Output()
	if err != nil || json.Unmarshal(raw, &r) != nil || r.Mode != "off" {
		t.Errorf("%v: %s", err, raw)
	}
	entries, err := os.ReadDir(filepath.Join(u.env.Dir, bucket))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".s3rdmafs") {
			t.Errorf("left in the bucket: %s", e.Name())
		}
	}
	for _, bad := range [][]string{{"bench", "s3://"}, {"bench", "s3://" + bucket, "--sizes", "many"}, {"bench", "s3://" + bucket, "--ops", "list"}} {
		if status, out := u.run(bad...); status == 0 {
			t.Errorf("%v succeeds: %s", bad, out)
		}
	}
}

func TestBenchInterrupted(t *testing.T) {
	u := newUser(t, testenv.Options{RDMA: true})
	bucket := u.env.NewBucket("")
	cmd := u.command("bench", "s3://"+bucket, "--sizes", "64KiB", "--ops", "put", "--time", "1h")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	deadline := time.After(time.Minute)
	for stored := false; !stored; {
		select {
		case <-look.C:
			m, err := filepath.Glob(filepath.Join(u.env.Dir, bucket, ".s3rdmafs-bench-*", "put-0"))
			stored = err == nil && len(m) == 1
		case err := <-exited:
			t.Fatalf("ended by itself: %v", err)
		case <-deadline:
			t.Fatal("stores nothing")
		}
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	<-exited
	if code := cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("exit status %d", code)
	}
	if left, _ := filepath.Glob(filepath.Join(u.env.Dir, bucket, ".s3rdmafs-bench-*")); len(left) != 0 {
		t.Errorf("left in the bucket: %v", left)
	}
}
