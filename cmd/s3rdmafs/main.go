// Command s3rdmafs mounts S3 buckets as directories, with object bytes moved
// by RDMA where the server speaks hipobj-rc-v2 and by HTTP elsewhere.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/alecthomas/kong"

	"s3rdmafs/internal/version"
)

type cli struct {
	Version kong.VersionFlag `help:"Print the version and exit."`

	Mount   mountCmd   `cmd:"" help:"Mount a bucket, a prefix of it, or all buckets (s3://) at a directory."`
	Umount  umountCmd  `cmd:"" help:"Unmount, and wait until the mount's process has stored everything and ended."`
	Recover recoverCmd `cmd:"" help:"List, store or export what killed mounts left in the spool."`
	Stat    statCmd    `cmd:"" help:"Show the live counters of a mount."`
	Devices devicesCmd `cmd:"" help:"List the RDMA devices of this machine, and the software device."`
	Doctor  doctorCmd  `cmd:"" help:"Say what a mount would do and why, and name the remedy for what is wrong."`
	Bench   benchCmd   `cmd:"" help:"Measure GET and PUT of a bucket, RDMA against HTTP, without FUSE."`
}

func main() {
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	var c cli
	parser, err := kong.New(&c,
		kong.Name("s3rdmafs"),
		kong.Description("Mount S3 buckets as directories, object bytes by RDMA."),
		kong.UsageOnError(),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.ValueFormatter(helpWithDefault),
		kong.Vars{"version": "s3rdmafs " + version.String()},
	)
	if err != nil {
		panic(err)
	}
	ctx, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(os.Stderr, "s3rdmafs: %v (s3rdmafs --help tells more)\n", err)
		return 2
	}
	if err := ctx.Run(); err != nil {
		fmt.Fprintf(os.Stderr, "s3rdmafs: %s\n", oneLine(err))
		return 1
	}
	return 0
}

// helpWithDefault adds the default where a placeholder hides it.
func helpWithDefault(v *kong.Value) string {
	help := kong.DefaultHelpValueFormatter(v)
	if v.Tag.PlaceHolder == "" || !v.HasDefault {
		return help
	}
	return strings.TrimSuffix(help, ".") + " (default: " + v.Default + ")."
}

// oneLine is err's text as one sentence, also where errors were joined.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' }), "; ")
}
