// Command s3rdmagw serves S3 on a directory of buckets, or in front of another
// S3 service, and moves object bytes by RDMA for clients that can.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/alecthomas/kong"

	"s3rdmafs/internal/version"
)

// Exit codes.
const (
	exitFailure = 1
	exitUsage   = 2
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is the whole program apart from its exit. Each failure is one line on
// stderr.
func run(args []string, stdout, stderr io.Writer) int {
	var c command
	exit := -1
	parser, err := kong.New(&c,
		kong.Name("s3rdmagw"),
		kong.Description("S3 gateway with RDMA. Root credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."),
		kong.Vars{"version": "s3rdmagw " + version.String()},
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { exit = code }),
	)
	if err != nil {
		fmt.Fprintln(stderr, "s3rdmagw:", err)
		return exitFailure
	}
	_, err = parser.Parse(args)
	if exit >= 0 {
		return exit
	}
	if err != nil {
		fmt.Fprintf(stderr, "s3rdmagw: %v\n", err)
		return exitUsage
	}
	if err := c.serve(stdout, stderr); err != nil {
		fmt.Fprintf(stderr, "s3rdmagw: %v\n", err)
		return exitFailure
	}
	return 0
}
