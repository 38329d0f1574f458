package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"s3rdmafs/gateway"
	"s3rdmafs/internal/testenv"
	"s3rdmafs/verbs"
)

// Two devices in turn, with a path MTU that only works because both sides have it.
func TestMountOverTwoRails(t *testing.T) {
	u := newUser(t, testenv.Options{RDMA: true, Gateway: gateway.Options{RDMA: &gateway.RDMA{MTU: verbs.MTU1024}}})
	bucket := u.env.NewBucket("")
	u.mount("s3://"+bucket, "--device", "shm,shm", "--rdma", "require",
		"--path-mtu", "1024", "--traffic-class", "106", "--service-level", "3", "--rdma-port", "1", "--gid-index", "0")
	in, out := tree(t), filepath.Join(t.TempDir(), "out")
	// Not by way of the mount, whose pages the kernel would keep.
	large := bytes.Repeat([]byte("0123456789abcde"), 2<<20)
	for _, args := range [][]string{{"cp", "-r", in + "/.", u.dir}, {"cp", "-r", u.dir, out}} {
		if text, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, text)
		}
	}
	equalTrees(t, in, out)
	u.env.Put(bucket, "large", large)
	if got, err := os.ReadFile(filepath.Join(u.dir, "large")); err != nil || !bytes.Equal(got, large) {
		t.Errorf("large object: %d bytes, %v", len(got), err)
	}
	for _, rail := range []string{"rails.0", "rails.1"} {
		if gets, puts := u.stat(rail+".gets"), u.stat(rail+".puts"); gets == 0 || puts == 0 {
			t.Errorf("%s: %d GETs, %d PUTs", rail, gets, puts)
		}
		if mtu := u.stat(rail + ".mtu"); mtu != 1024 {
			t.Errorf("%s: path MTU %d", rail, mtu)
		}
	}
	if n := u.stat("store.http_data_bytes_eligible"); n != 0 {
		t.Errorf("%d bytes went by HTTP", n)
	}
	u.umount()
	if log := u.readLog(); strings.Count(log, `msg="RDMA limits"`) != 2 || !strings.Contains(log, "traffic_class=106 sl=3") {
		t.Errorf("log:\n%s", log)
	}
}

func TestBadPathFlags(t *testing.T) {
	u := newUser(t, testenv.Options{RDMA: true})
	source := "s3://" + u.env.NewBucket("")
	for want, flags := range map[string][]string{
		"not a path MTU":          {"--path-mtu", "1500"},
		"--service-level":         {"--service-level", "16"},
		"no GID with index 9":     {"--gid-index", "9"},
		"no port 2":               {"--rdma-port", "2"},
		"not a device with a por": {"--device", "shm:x"},
	} {
		u.refused(t, u.command(append([]string{"mount", source, u.dir}, flags...)...), want)
	}
}
