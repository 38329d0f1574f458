package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"s3rdmafs/internal/doctor"
	"s3rdmafs/internal/pathflags"
	"s3rdmafs/store"
)

type doctorCmd struct {
	Target target `arg:"" optional:"" name:"source" help:"What would be mounted. With a bucket, 1 MiB is stored, read and removed again, by RDMA and by HTTP."`

	Endpoint string `placeholder:"URL" help:"As for mount."`
	Region   string `placeholder:"NAME" help:"As for mount."`
	Profile  string `placeholder:"NAME" help:"As for mount."`
	RDMA     string `name:"rdma" enum:"auto,require,off" default:"auto" help:"As for mount."`
	Device   string `default:"auto" placeholder:"NAME" help:"As for mount."`
	pathflags.Flags
	CacheSize size `placeholder:"SIZE" help:"As for mount."`

	ReadOnly bool   `help:"Store nothing in the bucket."`
	WCStatus string `name:"wc-status" placeholder:"NAME" help:"Tell about a work-completion status (RETRY_EXC_ERR, or all), and check nothing."`
	JSON     bool   `name:"json" help:"Print JSON."`
	Verbose  bool   `short:"v" help:"Log what happens below to stderr."`
}

func (c *doctorCmd) Run() error {
	if c.WCStatus != "" {
		return c.explain(os.Stdout)
	}
	mode, err := store.ParseMode(c.RDMA)
	if err != nil {
		return err
	}
	o := doctor.Options{
		Store: store.Options{Endpoint: c.Endpoint, Region: c.Region, Profile: c.Profile},
		RDMA:  mode, Device: c.Device, Path: c.Flags.Options(), CacheSize: int64(c.CacheSize),
		Bucket: c.Target.bucket, Prefix: c.Target.prefix, ReadOnly: c.ReadOnly,
	}
	if c.Verbose {
		o.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	p := doctor.NewPrinter(os.Stdout)
	if !c.JSON {
		o.OnStart, o.OnCheck = p.Head, p.Check
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second signal ends the process even while things are put back in order.
	context.AfterFunc(ctx, stop)
	report, err := doctor.Run(ctx, o)
	if report != nil && c.JSON {
		if jerr := printJSON(os.Stdout, report); jerr != nil {
			return jerr
		}
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted")
	case err != nil:
		return err
	}
	if !c.JSON {
		p.End(report)
	}
	if report.Failures > 0 {
		return fmt.Errorf("checks that failed: %d", report.Failures)
	}
	return nil
}

func (c *doctorCmd) explain(w io.Writer) error {
	entries, err := doctor.LookupStatus(c.WCStatus)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(w, entries)
	}
	for _, e := range entries {
		doctor.PrintStatus(w, e)
	}
	return nil
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
