package doctor

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"syscall"
	"time"

	"io"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

const (
	fuseDevice = "/dev/fuse"
	// mountTime bounds the test mount.
	mountTime = 10 * time.Second
)

const fuseInContainer = "in a container: docker run --device /dev/fuse --cap-add SYS_ADMIN --security-opt apparmor=unconfined"

// fuse checks that a mount can be made, by making one.
func (r *run) fuse(ctx context.Context) {
	root := mayMount()
	c := Check{Group: groupMachine, Name: "fuse"}
	if err := openFuse(); err != nil {
		c.Status, c.Fact = Fail, err.Error()
		switch {
		case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
			c.Remedy = "modprobe fuse; " + fuseInContainer
		case errors.Is(err, os.ErrPermission):
			c.Remedy = "chmod 666 /dev/fuse, or allow the device: " + fuseInContainer
		default:
			c.Remedy = "dmesg may say more"
		}
		r.add(c)
		r.fusermount(root)
		return
	}
	r.fusermount(root)
	kernel, err := testMount(ctx)
	if err != nil {
		c.Status, c.Fact = Fail, fmt.Sprintf("%s opens, but a test mount fails: %v", fuseDevice, err)
		c.Remedy = "without CAP_SYS_ADMIN fusermount3 must be installed and setuid root; " + fuseInContainer
		r.add(c)
		return
	}
	c.Status, c.Fact = OK, fmt.Sprintf("%s, kernel FUSE %d.%d, a test mount works", fuseDevice, kernel.Major, kernel.Minor)
	r.add(c)
	r.passthrough(kernel, root)
}

func openFuse() error {
	f, err := os.OpenFile(fuseDevice, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// fusermount checks the helper that mounts for users.
func (r *run) fusermount(root bool) {
	c := Check{Group: groupMachine, Name: "fusermount3", Status: OK}
	path, err := exec.LookPath("fusermount3")
	switch {
	case root:
		c.Fact = "not needed: this process may mount itself"
	case err != nil:
		c.Status, c.Fact = Fail, "not found, and this process may not mount itself (no CAP_SYS_ADMIN)"
		c.Remedy = "install the package fuse3, or mount as root"
	default:
		c.Fact = path
		if fi, err := os.Stat(path); err == nil && fi.Mode()&os.ModeSetuid == 0 {
			c.Status, c.Fact = Fail, path+" is not setuid root"
			c.Remedy = "chmod u+s " + path + " as root; a file system mounted nosuid or no_new_privs prevents it too"
		}
	}
	r.add(c)
}

// passthrough needs no remedy where it is missing: reads are then answered from
// the cache of the process.
func (r *run) passthrough(kernel fuse.InitIn, root bool) {
	c := Check{Group: groupMachine, Name: "passthrough", Status: OK}
	switch {
	case !kernelAtLeast(r.report.Kernel, 6, 9) || kernel.Flags64()&fuse.CAP_PASSTHROUGH == 0:
		c.Fact = "not possible: this kernel does not offer it (Linux 6.9 and later with CONFIG_FUSE_PASSTHROUGH)"
	case !root:
		c.Fact = "not possible: needs CAP_SYS_ADMIN"
	default:
		c.Fact = "possible"
	}
	r.add(c)
}

// mayMount reports CAP_SYS_ADMIN.
func mayMount() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return false
	}
	return data[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

func kernelAtLeast(release string, major, minor int) bool {
	var a, b int
	if _, err := fmt.Sscanf(release, "%d.%d", &a, &b); err != nil {
		return false
	}
	return a > major || a == major && b >= minor
}

// testMount mounts an empty directory, the only way to learn what the kernel
// speaks, and unmounts it.
func testMount(ctx context.Context) (fuse.InitIn, error) {
	dir, err := os.MkdirTemp("", "s3rdmafs-doctor-")
	if err != nil {
		return fuse.InitIn{}, err
	}
	type result struct {
		kernel fuse.InitIn
		err    error
	}
	done := make(chan result, 1)
	go func() {
		var res result
		res.kernel, res.err = mountOnce(dir)
		done <- res
	}()
	var res result
	select {
	case res = <-done:
	case <-time.After(mountTime):
		res.err = fmt.Errorf("no answer within %s", mountTime)
	case <-ctx.Done():
		res.err = ctx.Err()
	}
	// Nothing is mounted here any more unless something hangs.
	if err := os.Remove(dir); err != nil {
		if uerr := unix.Unmount(dir, unix.MNT_DETACH); uerr == nil {
			err = os.Remove(dir)
		}
		res.err = errors.Join(res.err, err)
	}
	return res.kernel, res.err
}

func mountOnce(dir string) (fuse.InitIn, error) {
	server, err := gofs.Mount(dir, &gofs.Inode{}, &gofs.Options{MountOptions: fuse.MountOptions{
		FsName: "s3rdmafs:doctor", Name: "s3rdmafs",
		DirectMount: true, DirectMountFlags: syscall.MS_NOSUID | syscall.MS_NODEV,
		Logger: log.New(io.Discard, "", 0),
	}})
	if err != nil {
		return fuse.InitIn{}, err
	}
	kernel := *server.KernelSettings()
	if err := server.Unmount(); err != nil {
		return kernel, err
	}
	server.Wait()
	return kernel, nil
}
