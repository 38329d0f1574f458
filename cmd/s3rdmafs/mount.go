package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"

	"s3rdmafs/fs"
	"s3rdmafs/internal/pathflags"
	"s3rdmafs/internal/stack"
	"s3rdmafs/internal/version"
	"s3rdmafs/store"
)

type mountCmd struct {
	Target     target `arg:"" name:"source" help:"s3://BUCKET, s3://BUCKET/PREFIX, or s3:// for every bucket a directory."`
	Mountpoint string `arg:"" help:"An empty directory." type:"path"`

	Endpoint string `placeholder:"URL" help:"The S3 endpoint. Default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, else Amazon's."`
	Region   string `placeholder:"NAME" help:"The region. Default: AWS_REGION, the profile's, else us-east-1."`
	Profile  string `placeholder:"NAME" help:"The profile of the shared credentials file."`

	RDMA   string `name:"rdma" enum:"auto,require,off" default:"auto" help:"auto: by RDMA where the server speaks it, else HTTP. require: an eligible transfer that RDMA cannot do is an error. off: HTTP."`
	Device string `default:"auto" placeholder:"NAME" help:"auto (by the route to the endpoint), shm (the software device, one host), or names NAME[:PORT],… of devices to use in turn."`
	pathflags.Flags
	CacheSize *size `placeholder:"SIZE" help:"Budget for all pinned memory: page cache and write staging. Default: 2GiB."`

	SpoolDir     string `type:"path" placeholder:"DIR" help:"Where the content of files being written is, until it is stored. Default: /var/lib/s3rdmafs/spool for root, else s3rdmafs/spool in XDG_STATE_HOME (~/.local/state)."`
	SpoolSize    size   `placeholder:"SIZE" help:"The most room to take there; writes beyond it fail (ENOSPC). Default: no limit."`
	SpoolReserve size   `placeholder:"SIZE" help:"Room to leave on its file system. Default: 1GiB, or 5 % of a small one."`
	NoReplay     bool   `help:"Do not store what a killed mount left in the spool; keep it for s3rdmafs recover."`

	OpTimeout time.Duration `default:"2m" placeholder:"TIME" help:"How long a program waits while the server does not answer, before its call fails."`

	ReadOnly   bool      `help:"Refuse every change."`
	AllowOther bool      `help:"Let other users in."`
	UID        *uint32   `name:"uid" placeholder:"N" help:"Owner of files that have none recorded. Default: the user who mounts."`
	GID        *uint32   `name:"gid" placeholder:"N" help:"Group of files that have none recorded."`
	FileMode   octalMode `default:"0644" help:"Mode of files that have none recorded."`
	DirMode    octalMode `default:"0755" help:"Mode of directories that have none recorded."`

	Foreground bool   `short:"f" help:"Stay in the foreground."`
	LogFile    string `type:"path" placeholder:"FILE" help:"Append the log to FILE. Default: stderr with -f, else syslog, else /var/log/s3rdmafs.log (a user's: ~/.local/state/s3rdmafs/s3rdmafs.log)."`
	LogLevel   string `enum:"debug,info,warn,error" default:"info" help:"debug, info, warn or error."`

	logPlace logPlace
	endName  string
}

// startTimeout bounds the way from the start to a mount that answers.
const startTimeout = 30 * time.Second

// drainTimeout bounds the storing of what is unsaved when the mount ends.
const drainTimeout = 2 * time.Minute

// octalMode is a file mode on the command line.
type octalMode uint32

func (m *octalMode) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 8, 32)
	if err != nil || n > 0o7777 {
		return fmt.Errorf("%q is not an octal mode such as 0644", text)
	}
	*m = octalMode(n)
	return nil
}

func (c *mountCmd) Run() error {
	report, err := background()
	if err != nil {
		return err
	}
	if !c.Foreground && report == nil {
		return startInBackground(c.LogFile)
	}
	if report == nil {
		report = func(error, []string) {}
	}
	if err := c.validate(); err != nil {
		report(err, nil)
		return err
	}
	log, notes, place, err := newLogger(c.LogFile, c.LogLevel, c.Foreground)
	if err != nil {
		report(err, nil)
		return err
	}
	c.logPlace = place
	end, err := newEnding()
	if err != nil {
		report(err, nil)
		return err
	}
	c.endName = end.name
	err = c.serve(log, func(err error) { report(err, notes.take()) })
	if err != nil {
		log.Error("ended with an error", "err", err)
	}
	end.close(err)
	return err
}

// minCacheSize is the least budget that holds a few parts of an upload and
// blocks to read beside them.
const minCacheSize = 64 << 20

// validate finds what is wrong with the flags alone.
func (c *mountCmd) validate() error {
	if c.CacheSize != nil && *c.CacheSize < minCacheSize {
		return fmt.Errorf("--cache-size: a cache of %s is too small, it takes at least %s",
			humanize.IBytes(uint64(*c.CacheSize)), humanize.IBytes(minCacheSize))
	}
	if c.OpTimeout <= 0 {
		return fmt.Errorf("--op-timeout: %v is no time to wait", c.OpTimeout)
	}
	if c.AllowOther && os.Geteuid() != 0 {
		conf, err := os.ReadFile("/etc/fuse.conf")
		if err != nil || !allowsOther(string(conf)) {
			return errors.New("--allow-other: only root may, unless /etc/fuse.conf has a line user_allow_other")
		}
	}
	return nil
}

func allowsOther(conf string) bool {
	for line := range strings.Lines(conf) {
		if strings.TrimSpace(line) == "user_allow_other" {
			return true
		}
	}
	return false
}

// serve mounts and stays until the mount ends. report is called once, when
// the mount answers or cannot be made.
func (c *mountCmd) serve(log *slog.Logger, report func(error)) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	// The terminal may go; the mount stays.
	signal.Ignore(syscall.SIGHUP)

	start, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	go func() {
		select {
		case <-signals:
			cancel()
			// Once more for the loop below, which may be reached all the same.
			signals <- os.Interrupt
		case <-start.Done():
		}
	}()
	s, m, err := c.mount(start, log)
	if err != nil {
		report(err)
		return err
	}
	cancel()
	log.Info("mounted", "source", c.Target.String(), "at", c.Mountpoint, "version", version.String(), "pid", os.Getpid())
	report(nil)

	ended := make(chan struct{})
	go func() {
		m.Wait()
		close(ended)
	}()
	var errs []error
	select {
	case <-ended:
	case sig := <-signals:
		log.Info("unmounting", "signal", sig.String())
	}
	drain, stop := context.WithTimeout(context.Background(), drainTimeout)
	defer stop()
	errs = append(errs, m.Unmount(drain))
	errs = append(errs, s.Close(drain))
	pinned := s.Cache.Stats().Pinned
	if pinned != 0 {
		errs = append(errs, fmt.Errorf("%d bytes were still pinned after the unmount", pinned))
	}
	err = errors.Join(errs...)
	log.Info("unmounted", "pinned", pinned, "clean", err == nil)
	return err
}

func (c *mountCmd) mount(ctx context.Context, log *slog.Logger) (*stack.Stack, *fs.Mounted, error) {
	mode, err := store.ParseMode(c.RDMA)
	if err != nil {
		return nil, nil, err
	}
	// Checked first: nothing is opened for a directory that cannot serve.
	if err := fs.CheckMountpoint(c.Mountpoint); err != nil {
		return nil, nil, err
	}
	var cacheSize int64
	if c.CacheSize != nil {
		cacheSize = int64(*c.CacheSize)
	}
	s, err := stack.Open(ctx, stack.Options{
		Store:     store.Options{Endpoint: c.Endpoint, Region: c.Region, Profile: c.Profile, RetryFor: c.OpTimeout},
		RDMA:      mode,
		Device:    c.Device,
		Path:      c.Flags.Options(),
		CacheSize: cacheSize,
		Logger:    log,
	})
	if err != nil {
		return nil, nil, err
	}
	m, err := c.mountOn(ctx, s, log)
	if err != nil {
		if cerr := s.Close(ctx); cerr != nil {
			log.Warn("closing after a failed start", "err", cerr)
		}
		return nil, nil, err
	}
	return s, m, nil
}

// extraStats are what the counters of a mount show beside the file system's own.
type extraStats struct {
	stack.Stats
	Log logPlace `json:"log"`
	End string   `json:"end"` // socket that tells how the mount ended
}

func (c *mountCmd) mountOn(ctx context.Context, s *stack.Stack, log *slog.Logger) (*fs.Mounted, error) {
	if err := s.Check(ctx, c.Target.bucket, c.Target.prefix); err != nil {
		return nil, err
	}
	if err := s.CheckRDMA(ctx); err != nil {
		return nil, err
	}
	o := fs.Options{
		Store: s.Store, Cache: s.Cache,
		Bucket: c.Target.bucket, Prefix: c.Target.prefix,
		OpTimeout: c.OpTimeout,
		ReadOnly:  c.ReadOnly, AllowOther: c.AllowOther,
		UID: uint32(os.Getuid()), GID: uint32(os.Getgid()),
		FileMode: uint32(c.FileMode), DirMode: uint32(c.DirMode),
		SpoolDir: c.SpoolDir, SpoolSize: int64(c.SpoolSize), SpoolReserve: int64(c.SpoolReserve), NoReplay: c.NoReplay,
		Logger:     log,
		ExtraStats: func() any { return extraStats{s.Stats(), c.logPlace, c.endName} },
	}
	if c.UID != nil {
		o.UID = *c.UID
	}
	if c.GID != nil {
		o.GID = *c.GID
	}
	m, err := fs.Mount(ctx, filepath.Clean(c.Mountpoint), o)
	if err != nil {
		return nil, err
	}
	// Mounted means that it answers, not that the kernel has an entry.
	var st syscall.Stat_t
	if err := syscall.Stat(c.Mountpoint, &st); err != nil {
		return nil, errors.Join(fmt.Errorf("the mount at %s does not answer: %w", c.Mountpoint, err), m.Unmount(ctx))
	}
	return m, nil
}
