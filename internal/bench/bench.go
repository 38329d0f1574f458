package bench

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"s3rdmafs/cache"
	"s3rdmafs/internal/stack"
	"s3rdmafs/internal/version"
	"s3rdmafs/store"
	"s3rdmafs/verbs"
	"s3rdmafs/verbs/provider"
)

// Op is what is measured.
type Op string

const (
	Get Op = "get"
	Put Op = "put"
)

// Modes of a run.
const (
	ModeBoth    = "both" // RDMA and HTTP in turn
	ModeAuto    = "auto" // as a mount chooses
	ModeRequire = "require"
	ModeOff     = "off"
)

const (
	laneRDMA = "rdma"
	laneHTTP = "http"
	laneAuto = "auto"

	// rounds is how often the lanes take turns at a point.
	rounds = 4
	// minRDMA is the smallest transfer that the store gives to RDMA, bytes.
	minRDMA = 64 << 10
	// removeTime bounds the removal of the objects.
	removeTime = time.Minute

	keyPrefix = ".s3rdmafs-bench-"
)

// Options say what to measure. The zero value of a field means the default
// that its comment gives.
type Options struct {
	Store          store.Options // endpoint, region, profile
	Device         string
	Path           provider.Options // what is to be so at the own end of connections
	Mode           string           // ModeBoth
	Bucket, Prefix string
	Ops            []Op          // Get, Put
	Sizes          []int64       // bytes; 64 KiB, 1 MiB, 16 MiB
	Concurrency    []int         // 1, 8
	Time           time.Duration // of each lane at each point; 3 s
	// Memory bounds the buffers, which are as many as the highest concurrency
	// of the largest size; 1 GiB.
	Memory int64
	Logger *slog.Logger
	// Progress, which may be nil, is told in a few words what is measured now.
	Progress func(string)
}

func (o *Options) setDefaults() error {
	if o.Mode == "" {
		o.Mode = ModeBoth
	}
	if len(o.Ops) == 0 {
		o.Ops = []Op{Get, Put}
	}
	if len(o.Sizes) == 0 {
		o.Sizes = []int64{64 << 10, 1 << 20, 16 << 20}
	}
	if len(o.Concurrency) == 0 {
		o.Concurrency = []int{1, 8}
	}
	if o.Time <= 0 {
		o.Time = 3 * time.Second
	}
	if o.Memory <= 0 {
		o.Memory = 1 << 30
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	switch {
	case o.Bucket == "":
		return errors.New("no bucket")
	case !slices.Contains([]string{ModeBoth, ModeAuto, ModeRequire, ModeOff}, o.Mode):
		return fmt.Errorf("unknown mode %q", o.Mode)
	case slices.Min(o.Sizes) <= 0:
		return errors.New("a size must be at least one byte")
	case slices.Min(o.Concurrency) <= 0:
		return errors.New("the concurrency must be at least 1")
	case slices.ContainsFunc(o.Ops, func(op Op) bool { return op != Get && op != Put }):
		return fmt.Errorf("operations are %s and %s", Get, Put)
	}
	if most := slices.Max(o.Sizes); most > o.Memory/int64(slices.Max(o.Concurrency)) {
		return fmt.Errorf("%d transfers of %s at a time need more than %s of buffers: lower --sizes or --concurrency",
			slices.Max(o.Concurrency), humanize.IBytes(uint64(most)), humanize.IBytes(uint64(o.Memory)))
	}
	return nil
}

// lane is one way to the endpoint.
type lane struct {
	name  string
	stack *stack.Stack
}

// run is one benchmark under way.
type run struct {
	o      Options
	result *Result
	lanes  []lane
	prefix string // of all keys of this run
	buffer *stack.Buffer
	segs   []verbs.Segment // one for each worker
	unsafe atomic.Bool     // the buffer may never be given back
}

// Run measures, and removes what it stored, also when ctx ends. The result holds
// what was measured before an error.
func Run(ctx context.Context, o Options) (_ *Result, err error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	config, err := o.Store.Resolve()
	if err != nil {
		return nil, err
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, err
	}
	var id [8]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, err
	}
	b := &run{o: o, prefix: o.Prefix + keyPrefix + hex.EncodeToString(id[:]) + "/", result: &Result{
		Version: version.String(), Go: runtime.Version(), Kernel: unix.ByteSliceToString(u.Release[:]), Arch: runtime.GOARCH,
		CPUs: runtime.NumCPU(), Endpoint: config.Endpoint.String(), Bucket: o.Bucket, Mode: o.Mode, Seconds: o.Time.Seconds(),
	}}
	defer func() { err = errors.Join(err, b.close(ctx)) }()
	if err := b.open(ctx); err != nil {
		return b.result, err
	}
	if err := b.lanes[0].stack.Check(ctx, o.Bucket, o.Prefix); err != nil {
		return b.result, err
	}
	defer func() { err = errors.Join(err, b.removeAll(ctx)) }()
	if err := b.preflight(ctx); err != nil {
		return b.result, err
	}
	return b.result, b.measure(ctx)
}

// open opens a stack for each lane, and the buffers.
func (b *run) open(ctx context.Context) error {
	switch b.o.Mode {
	case ModeBoth:
		err := b.openLane(ctx, laneRDMA, store.ModeRequire)
		if errors.Is(err, verbs.ErrNoDevice) && b.o.Device == "" {
			b.note("no RDMA: " + err.Error())
			err = nil
		}
		if err != nil {
			return err
		}
	case ModeRequire:
		if err := b.openLane(ctx, laneRDMA, store.ModeRequire); err != nil {
			return err
		}
	case ModeAuto:
		if err := b.openLane(ctx, laneAuto, store.ModeAuto); err != nil {
			return err
		}
	}
	if b.o.Mode == ModeBoth || b.o.Mode == ModeOff {
		if err := b.openLane(ctx, laneHTTP, store.ModeOff); err != nil {
			return err
		}
	}
	size := max(minRDMA, slices.Max(b.o.Sizes)) // preflight moves minRDMA
	workers := slices.Max(b.o.Concurrency)
	// Each worker's buffer begins on a page.
	stride := (size + pageSize - 1) / pageSize * pageSize
	var err error
	if b.buffer, err = b.lanes[0].stack.NewBuffer(int(stride) * workers); err != nil {
		return err
	}
	all := b.buffer.Segment()
	if _, err := rand.Read(all.Buf); err != nil {
		return err
	}
	for i := range workers {
		b.segs = append(b.segs, all.Slice(i*int(stride), int(size)))
	}
	return nil
}

const pageSize = 4096

func (b *run) openLane(ctx context.Context, name string, mode store.Mode) error {
	so := b.o.Store
	so.MaxConns = max(64, 2*slices.Max(b.o.Concurrency))
	s, err := stack.Open(ctx, stack.Options{Store: so, RDMA: mode, Device: b.o.Device, Path: b.o.Path, CacheSize: cache.MinSize, Logger: b.o.Logger})
	if err != nil {
		return err
	}
	b.lanes = append(b.lanes, lane{name, s})
	t := s.Stats().Transport
	if choice, ok := s.Choice(); ok {
		b.result.Device = &Device{
			Name: t.Device, Provider: t.Provider, Port: choice.Port, GIDIndex: choice.GIDIndex, GIDType: choice.GIDType.String(),
			NetDev: choice.NetDev, MTU: choice.MTU.Bytes(), Reason: choice.Reason,
		}
	} else if mode == store.ModeAuto {
		b.note("no RDMA: " + t.Reason)
	}
	return nil
}

func (b *run) note(s string) { b.result.Notes = append(b.result.Notes, s) }

// close gives buffers and lanes back.
func (b *run) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
	defer cancel()
	var errs []error
	if b.buffer != nil && !b.unsafe.Load() {
		errs = append(errs, b.buffer.Close())
	}
	for _, l := range b.lanes {
		errs = append(errs, l.stack.Close(ctx))
	}
	return errors.Join(errs...)
}

// removeAll deletes everything below the run's prefix. A PUT that was cut off
// may still be stored meanwhile, hence the second look.
func (b *run) removeAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
	defer cancel()
	if len(b.lanes) == 0 {
		return fmt.Errorf("objects may be left at s3://%s/%s", b.o.Bucket, b.prefix)
	}
	s := b.lanes[len(b.lanes)-1].stack.Store
	err := removePrefix(ctx, s, b.o.Bucket, b.prefix)
	if err == nil {
		err = removePrefix(ctx, s, b.o.Bucket, b.prefix)
	}
	if err != nil {
		return fmt.Errorf("objects may be left at s3://%s/%s: %w", b.o.Bucket, b.prefix, err)
	}
	return nil
}

func removePrefix(ctx context.Context, s *store.Store, bucket, prefix string) error {
	r := store.ListRequest{Bucket: bucket, Prefix: prefix, Recursive: true}
	for {
		page, err := s.List(ctx, r)
		if err != nil {
			return err
		}
		var keys []string
		for _, i := range page.Infos {
			keys = append(keys, i.Key)
		}
		if len(keys) > 0 {
			left, err := s.DeleteMany(ctx, bucket, keys)
			if err != nil {
				return err
			}
			for key, err := range left {
				return fmt.Errorf("%s: %w", key, err)
			}
		}
		if page.Next == "" {
			return nil
		}
		r.Token = page.Next
	}
}
