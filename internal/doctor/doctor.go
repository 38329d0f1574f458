package doctor

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"s3rdmafs/internal/stack"
	"s3rdmafs/internal/version"
	"s3rdmafs/store"
	"s3rdmafs/token"
	"s3rdmafs/verbs/provider"
)

const (
	groupMachine = "machine"
	groupRDMA    = "rdma"
	groupNetwork = "network"
	groupServer  = "server"
	groupBucket  = "bucket"
)

// defaultTimeout bounds each step that waits for the network.
const defaultTimeout = 5 * time.Second

// Options say what a mount would be asked for. The zero value of each field
// means the mount's own default.
type Options struct {
	Store     store.Options // endpoint, region, profile
	RDMA      store.Mode
	Device    string           // as for the mount: "auto", or names with or without ports
	Path      provider.Options // what is to be so at the own end of connections
	CacheSize int64            // bytes
	// Bucket to look into; "" leaves out the transfers.
	Bucket, Prefix string
	// ReadOnly stores nothing in the bucket.
	ReadOnly bool
	// Timeout of one step that waits for the network; 5 s.
	Timeout time.Duration
	Logger  *slog.Logger
	// OnStart and OnCheck, which may be nil, are told what is known so far.
	OnStart func(*Report)
	OnCheck func(Check)
}

// run is one examination. What a check learned is there for those after it.
type run struct {
	o      Options
	report *Report
	config store.Config

	addrs     []netip.Addr
	routes    []Route
	rails     []rail // the devices a mount would use; none without RDMA
	pinned    bool   // the cache can be pinned
	reachable bool
	creds     *token.Credentials
	spoken    spoken
	caps      token.Capabilities
	moved     bool // a megabyte went by RDMA and came back the same
}

// rail is a device with what was chosen on it.
type rail struct {
	device string
	choice provider.Choice
}

func (r *run) deviceNames() string {
	var names []string
	for _, l := range r.rails {
		names = append(names, l.device)
	}
	return strings.Join(names, ", ")
}

// Run makes all checks. It stores at most one object of 1 MiB in the bucket, and
// removes it also when ctx ends. The error is about o itself, or ctx's; the
// report then holds what was found out before.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout
	}
	if o.Device == "" {
		o.Device = provider.Auto
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	config, err := o.Store.Resolve()
	if err != nil {
		return nil, err
	}
	r := &run{o: o, config: config, report: &Report{
		Version: version.String(), Kernel: kernelRelease(), Arch: runtime.GOARCH, CPUs: runtime.NumCPU(),
		Endpoint: config.Endpoint.String(), Region: config.Region, Bucket: o.Bucket, Mode: o.RDMA.String(),
	}}
	if o.OnStart != nil {
		o.OnStart(r.report)
	}
	for _, step := range []func(context.Context){
		r.fuse, r.memory,
		r.resolve, r.connect, r.clock,
		r.rdma,
		r.credentials, r.probe,
		r.access, r.transfers,
	} {
		if err := ctx.Err(); err != nil {
			return r.report, err
		}
		step(ctx)
	}
	r.report.Verdict = r.verdict()
	return r.report, ctx.Err()
}

func (r *run) add(c Check) {
	c.Fact = strings.Join(strings.Fields(c.Fact), " ") // errors from outside may have more lines than one
	if c.Status != Warn && c.Status != Fail {
		c.Remedy = ""
	}
	switch c.Status {
	case Fail:
		r.report.Failures++
	case Warn:
		r.report.Warnings++
	}
	r.report.Checks = append(r.report.Checks, c)
	if r.o.OnCheck != nil {
		r.o.OnCheck(c)
	}
}

// withoutRDMA is the status of what keeps object bytes off RDMA.
func (r *run) withoutRDMA() Status {
	switch r.o.RDMA {
	case store.ModeOff:
		return OK
	case store.ModeRequire:
		return Fail
	}
	return Warn
}

func (r *run) cacheSize() int64 {
	if r.o.CacheSize == 0 {
		return stack.DefaultCacheSize
	}
	return r.o.CacheSize
}

func (r *run) verdict() string {
	why := ""
	switch {
	case r.report.Failures > 0:
		return "As asked for, a mount would not work, or not well: see what failed above."
	case r.o.RDMA == store.ModeOff:
		why = "RDMA is switched off"
	case len(r.rails) == 0:
		why = "no RDMA device leads to the endpoint"
	case !r.pinned:
		why = "the cache cannot be pinned"
	case r.spoken == spokenNo:
		why = "the server does not speak hipobj-rc-v2"
	case r.spoken == spokenUnknown:
		why = "the server did not say whether it speaks hipobj-rc-v2"
	case !r.moved && r.o.Bucket != "" && r.report.Find(checkRDMA).Status != Skip:
		why = "the test transfer by RDMA failed"
	default:
		verdict := fmt.Sprintf("Object bytes would move by RDMA on %s, in transfers of 64 KiB and more; all else goes by HTTP.", r.deviceNames())
		if !r.moved {
			verdict += " Not tried: that takes a bucket and an object."
		}
		return verdict
	}
	return "All object bytes would move by HTTP: " + why + "."
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}
