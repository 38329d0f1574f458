package main

import (
	"fmt"
	"math"
	"os"

	"github.com/alecthomas/kong"
	"github.com/dustin/go-humanize"

	"s3rdmafs/gateway"
	"s3rdmafs/internal/pathflags"
)

// command is the command line.
type command struct {
	Dir         string   `help:"Directory of the buckets: each subdirectory is one." placeholder:"DIR"`
	MetadataDir string   `help:"Directory for metadata where DIR's file system has no extended attributes (default: a hidden one beside DIR)." placeholder:"DIR"`
	Listen      string   `help:"Address to listen on, HOST:PORT; port 0 takes any free one." default:"127.0.0.1:7070"`
	Bucket      []string `help:"Create this bucket if it does not exist (repeatable)." sep:"none" placeholder:"NAME"`
	ReadOnly    bool     `help:"Refuse all writes."`
	Region      string   `help:"Region of the signatures." default:"us-east-1"`
	IAMDir      string   `name:"iam-dir" help:"Directory with further accounts; created by versitygw's admin API." placeholder:"DIR"`
	Cert        string   `help:"Certificate to serve HTTPS with (PEM)." placeholder:"FILE"`
	Key         string   `help:"Key of the certificate (PEM)." placeholder:"FILE"`

	Device string `help:"RDMA device: auto, shm (the software device, clients of this user on this host), none, or a name." default:"auto"`
	pathflags.Flags
	StagingSize byteSize `help:"Limit of registered staging memory. Default: 1GiB, or less if the process may not lock as much." placeholder:"SIZE"`

	Backend          string `help:"What holds the objects: posix (DIR) or s3 (the backend endpoint)." enum:"posix,s3" default:"posix"`
	BackendEndpoint  string `help:"S3 service behind the gateway." placeholder:"URL"`
	BackendRegion    string `help:"Region of the service behind (default: --region)." placeholder:"REGION"`
	BackendAccessKey string `help:"Access key for the service behind (default: the root access key)." env:"S3RDMAGW_BACKEND_ACCESS_KEY" placeholder:"KEY"`
	BackendSecretKey string `help:"Secret key for the service behind; better given in the environment." env:"S3RDMAGW_BACKEND_SECRET_KEY" placeholder:"KEY"`
	BackendInsecure  bool   `help:"Accept any certificate of the service behind."`

	LogLevel string `help:"Least level to log: debug, info, warn or error." enum:"debug,info,warn,error" default:"info"`
	LogFile  string `help:"Log to this file instead of standard error." placeholder:"FILE"`
	Pprof    string `help:"Serve Go's profiles over HTTP on this address." placeholder:"HOST:PORT"`

	Version kong.VersionFlag `help:"Print the version and exit."`
}

// options is what the gateway is told, apart from device and log.
func (c *command) options() gateway.Options {
	o := gateway.Options{
		Backend:     gateway.Backend(c.Backend),
		Dir:         c.Dir,
		MetadataDir: c.MetadataDir,
		AccessKey:   os.Getenv("AWS_ACCESS_KEY_ID"),
		SecretKey:   os.Getenv("AWS_SECRET_ACCESS_KEY"),
		IAMDir:      c.IAMDir,
		Region:      c.Region,
		ReadOnly:    c.ReadOnly,
		Buckets:     c.Bucket,
		CertFile:    c.Cert,
		KeyFile:     c.Key,
		Upstream: gateway.Upstream{
			Endpoint:  c.BackendEndpoint,
			Region:    c.BackendRegion,
			AccessKey: c.BackendAccessKey,
			SecretKey: c.BackendSecretKey,
			Insecure:  c.BackendInsecure,
		},
	}
	if o.Upstream.AccessKey == "" && o.Upstream.SecretKey == "" {
		o.Upstream.AccessKey, o.Upstream.SecretKey = o.AccessKey, o.SecretKey
	}
	return o
}

// byteSize is a number of bytes, written as 1GiB, 512MiB, 1000000.
type byteSize int64

func (s *byteSize) UnmarshalText(text []byte) error {
	n, err := humanize.ParseBytes(string(text))
	if err != nil || n == 0 || n > math.MaxInt64 {
		return fmt.Errorf("%q is not a size, want for example 512MiB or 1GiB", text)
	}
	*s = byteSize(n)
	return nil
}
