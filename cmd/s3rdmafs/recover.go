package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"

	"s3rdmafs/fs"
	"s3rdmafs/internal/stack"
	"s3rdmafs/spool"
	"s3rdmafs/store"
)

type recoverCmd struct {
	Target   *target `arg:"" optional:"" name:"source" help:"Only what mounts of this s3://BUCKET/PREFIX left. Default: of any."`
	Endpoint string  `placeholder:"URL" help:"Only what mounts of this endpoint left."`
	Region   string  `placeholder:"NAME" help:"As for mount."`
	Profile  string  `placeholder:"NAME" help:"As for mount."`
	SpoolDir string  `type:"path" placeholder:"DIR" help:"The spool directory of the mounts. Default: as for mount."`

	List   bool   `xor:"do" help:"List what is there (the default)."`
	Replay bool   `xor:"do" help:"Store what can be stored without replacing what others wrote since."`
	Export string `xor:"do" type:"path" placeholder:"DIR" help:"Move all of it out of the spool, to files below DIR."`
}

func (c *recoverCmd) Run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := c.SpoolDir
	if root == "" {
		var err error
		if root, err = spool.DefaultRoot(); err != nil {
			return err
		}
	}
	ids, err := spool.Identities(root)
	if err != nil {
		return err
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	left := 0
	var errs []error
	for _, id := range ids {
		if !c.wants(id) {
			continue
		}
		n, err := c.recover(ctx, root, id, out)
		left += n
		if err != nil {
			errs = append(errs, fmt.Errorf("%s at %s: %w", id, id.Endpoint, err))
		}
	}
	if left > 0 && c.Replay {
		errs = append(errs, fmt.Errorf("%d stay in the spool; --export DIR moves them out", left))
	}
	return errors.Join(append(errs, out.Flush())...)
}

func (c *recoverCmd) wants(id spool.Identity) bool {
	if c.Target != nil && (c.Target.bucket != id.Bucket || c.Target.prefix != id.Prefix) {
		return false
	}
	return c.Endpoint == "" || strings.TrimSuffix(c.Endpoint, "/") == id.Endpoint
}

// recover deals with what mounts of id left, and returns how many stay.
func (c *recoverCmd) recover(ctx context.Context, root string, id spool.Identity, out *tabwriter.Writer) (left int, err error) {
	sp, err := spool.Adopt(root, id)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, sp.Close()) }()
	if n := sp.Busy(); n > 0 {
		fmt.Fprintf(os.Stderr, "s3rdmafs: %d living mounts of %s at %s are left alone\n", n, id, id.Endpoint)
	}
	switch {
	case c.Replay:
		err = c.replay(ctx, sp, id, out)
	case c.Export != "":
		for _, l := range sp.Leftovers() {
			to, merr := moveOut(l, c.Export)
			if merr != nil {
				err = errors.Join(err, merr)
				continue
			}
			fmt.Fprintf(out, "%s\t%s\n", nameOf(l), to)
		}
	default:
		for _, l := range sp.Leftovers() {
			fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\n", id.Endpoint, nameOf(l), humanize.IBytes(uint64(l.Size)), l.Changed.Format(time.DateTime), whyLeft(l))
		}
	}
	return len(sp.Leftovers()), err
}

// replay asks the server about each leftover, and stores what it can.
func (c *recoverCmd) replay(ctx context.Context, sp *spool.Spool, id spool.Identity, out *tabwriter.Writer) error {
	if len(sp.Leftovers()) == 0 {
		return nil
	}
	s, err := stack.Open(ctx, stack.Options{
		Store:  store.Options{Endpoint: id.Endpoint, Region: c.Region, Profile: c.Profile},
		RDMA:   store.ModeOff,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	o := fs.Options{Store: s.Store, Cache: s.Cache, Bucket: id.Bucket, Prefix: id.Prefix}
	err = fs.Recover(ctx, sp, o, func(l *spool.Leftover, what fs.Outcome, why error) {
		fmt.Fprintf(out, "%s\t%s", nameOf(l), what)
		if why != nil {
			fmt.Fprintf(out, ": %s", oneLine(why))
		}
		fmt.Fprintln(out)
	})
	return errors.Join(err, s.Close(context.WithoutCancel(ctx)))
}

// nameOf is what l was meant to become.
func nameOf(l *spool.Leftover) string {
	if l.Damage != nil {
		return "(damaged)"
	}
	return fmt.Sprintf("s3://%s/%s", l.Record.Bucket, l.Record.Key)
}

// whyLeft says why l is not stored, as far as its record tells.
func whyLeft(l *spool.Leftover) string {
	switch {
	case l.Damage != nil:
		return l.Damage.Error()
	case l.Record.Cause != "":
		return l.Record.Cause
	case l.Record.State == spool.Stored:
		return "multipart uploads to abort"
	case !l.Trustworthy():
		return "the machine went down since, the content may have holes"
	}
	return "not stored yet"
}

// moveOut moves the content of l to a new file below dir, in the place of its
// key where the key is a path, and returns where to; "" when there is none.
func moveOut(l *spool.Leftover, dir string) (string, error) {
	if l.Path == "" {
		return "", l.Remove()
	}
	rel := filepath.Join(l.Record.Bucket, filepath.FromSlash(l.Record.Key))
	switch {
	case l.Damage != nil:
		rel = filepath.Join("damaged", filepath.Base(l.Path))
	case !filepath.IsLocal(rel) || strings.ContainsRune(rel, 0):
		rel = filepath.Join("keys", url.PathEscape(l.Record.Bucket+"/"+l.Record.Key))
	}
	base := filepath.Join(dir, rel)
	if err := os.MkdirAll(filepath.Dir(base), 0o700); err != nil {
		return "", err
	}
	for i := 1; ; i++ {
		to := base
		if i > 1 {
			to = fmt.Sprintf("%s.%d", base, i)
		}
		err := l.MoveTo(to)
		if !errors.Is(err, os.ErrExist) {
			return to, err
		}
	}
}
