package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"s3rdmafs/internal/bench"
	"s3rdmafs/internal/pathflags"
	"s3rdmafs/store"
)

type benchCmd struct {
	Target target `arg:"" name:"source" help:"s3://BUCKET or s3://BUCKET/PREFIX, where the objects go. They are removed at the end."`

	Endpoint string `placeholder:"URL" help:"As for mount."`
	Region   string `placeholder:"NAME" help:"As for mount."`
	Profile  string `placeholder:"NAME" help:"As for mount."`
	Device   string `default:"auto" placeholder:"NAME" help:"As for mount."`
	pathflags.Flags

	RDMA        string        `name:"rdma" enum:"both,auto,require,off" default:"both" help:"both: RDMA and HTTP in turn. auto: as a mount chooses. require: only RDMA. off: only HTTP."`
	Sizes       []size        `default:"64KiB,1MiB,16MiB" placeholder:"SIZE" help:"Sizes of the objects."`
	Concurrency []int         `default:"1,8" placeholder:"N" help:"Numbers of transfers at a time."`
	Ops         []string      `enum:"get,put" default:"get,put" placeholder:"OP" help:"get, put."`
	Time        time.Duration `default:"3s" help:"How long each line of the table is measured."`
	Memory      size          `default:"1GiB" placeholder:"SIZE" help:"Limit of the buffers: the highest concurrency of the largest size."`
	JSON        string        `name:"json" placeholder:"FILE" help:"Write JSON to FILE too; to stdout instead of the table with -."`
	Verbose     bool          `short:"v" help:"Log what happens below to stderr."`
}

func (c *benchCmd) Run() error {
	if c.Target.bucket == "" {
		return errors.New("bench needs a bucket: s3://BUCKET")
	}
	o := bench.Options{
		Store:  store.Options{Endpoint: c.Endpoint, Region: c.Region, Profile: c.Profile},
		Path:   c.Flags.Options(),
		Mode:   c.RDMA,
		Bucket: c.Target.bucket, Prefix: c.Target.prefix,
		Concurrency: c.Concurrency, Time: c.Time, Memory: int64(c.Memory),
	}
	if c.Device != "auto" {
		o.Device = c.Device
	}
	for _, s := range c.Sizes {
		o.Sizes = append(o.Sizes, int64(s))
	}
	for _, op := range c.Ops {
		o.Ops = append(o.Ops, bench.Op(op))
	}
	if c.Verbose {
		o.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	endProgress := func() {}
	if isTerminal(os.Stderr) && !c.Verbose {
		o.Progress, endProgress = progressLine(os.Stderr)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second signal ends the process even while objects are removed.
	context.AfterFunc(ctx, stop)
	result, err := bench.Run(ctx, o)
	endProgress()
	if result != nil && (err == nil || len(result.Points) > 0) {
		err = errors.Join(err, c.write(result))
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return errors.New("interrupted")
	}
	return err
}

func (c *benchCmd) write(r *bench.Result) error {
	if c.JSON == "-" {
		return printJSON(os.Stdout, r)
	}
	if err := r.Print(os.Stdout); err != nil || c.JSON == "" {
		return err
	}
	f, err := os.Create(c.JSON)
	if err != nil {
		return err
	}
	return errors.Join(printJSON(f, r), f.Close())
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// progressLine writes over one line until end clears it.
func progressLine(w io.Writer) (progress func(string), end func()) {
	const clearLine = "\r\x1b[K"
	return func(s string) { fmt.Fprint(w, clearLine+s) }, func() { fmt.Fprint(w, clearLine) }
}
