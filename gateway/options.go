package gateway

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"

	"s3rdmafs/verbs"
)

// Backend names what holds the objects.
type Backend string

const (
	// BackendPosix keeps each bucket as a subdirectory of Options.Dir.
	BackendPosix Backend = "posix"
	// BackendS3 passes everything on to the S3 service at Options.Upstream.
	BackendS3 Backend = "s3"
)

// Upstream is the S3 service behind a gateway with BackendS3.
type Upstream struct {
	Endpoint  string // URL
	Region    string // Options.Region when empty
	AccessKey string
	SecretKey string
	// Insecure accepts any certificate of the endpoint.
	Insecure bool
}

// RDMA is the device that a gateway serves RC sessions on.
type RDMA struct {
	Device    verbs.Device // stays the caller's; close it after the gateway
	Port      uint8        // 1 when zero
	GIDIndex  int
	GID       verbs.GID
	MTU       verbs.MTU // the port's active MTU when zero
	MaxQPs    int       // 1024 when zero
	Staging   int64     // bytes of registered staging memory; 1 GiB when zero
	Sessions  int       // 1024 when zero
	PerClient int       // sessions of one principal; 64 when zero

	TrafficClass, SL uint8 // of the packets

	// RenewGID returns index and GID of the own end after the port's GID table
	// changed. It is called by one goroutine. Nil: the GID that is at GIDIndex.
	RenewGID func() (index int, gid verbs.GID, err error) `json:"-"`
}

// Options describe a gateway. The zero value of each field means the default
// that its comment gives.
type Options struct {
	Backend  Backend // posix
	Dir      string  // posix: the directory of the buckets, must exist
	Upstream Upstream

	// MetadataDir holds the metadata of objects where the file system of Dir
	// has no extended attributes. Default: a hidden directory beside Dir.
	MetadataDir string

	// AccessKey and SecretKey are the root account's. Both are required.
	AccessKey, SecretKey string
	// IAMDir holds further accounts; empty means the root account alone.
	IAMDir string

	Region   string // us-east-1
	ReadOnly bool
	// Buckets are created, owned by root, when they do not exist.
	Buckets []string

	// CertFile and KeyFile make the gateway serve HTTPS. Both or neither.
	CertFile, KeyFile string

	// RDMA is nil for a gateway without RDMA, whose RC routes answer that they
	// are unsupported.
	RDMA *RDMA
	// NoRCRoutes leaves the RC routes out, as on a plain S3 server.
	NoRCRoutes bool

	Logger *slog.Logger // slog.Default()
}

const defaultRegion = "us-east-1"

// withDefaults returns o complete and checked, with absolute paths. Each error
// is one sentence that says which setting is wrong.
func (o Options) withDefaults() (Options, error) {
	if o.Backend == "" {
		o.Backend = BackendPosix
	}
	if o.Region == "" {
		o.Region = defaultRegion
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.AccessKey == "" || o.SecretKey == "" {
		return o, errors.New("the root account's access key and secret key are missing (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)")
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		return o, errors.New("a certificate and its key are needed together")
	}
	if o.NoRCRoutes && o.RDMA != nil {
		return o, errors.New("RDMA needs the RC routes")
	}
	switch o.Backend {
	case BackendPosix:
		return o.withPosixDefaults()
	case BackendS3:
		u, err := url.Parse(o.Upstream.Endpoint)
		if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
			return o, fmt.Errorf("backend endpoint %q is not an http or https URL", o.Upstream.Endpoint)
		}
		if o.Upstream.AccessKey == "" || o.Upstream.SecretKey == "" {
			return o, errors.New("the credentials for the backend endpoint are missing")
		}
		if o.Upstream.Region == "" {
			o.Upstream.Region = o.Region
		}
		return o, nil
	}
	return o, fmt.Errorf("backend %q is unknown, want posix or s3", o.Backend)
}

func (o Options) withPosixDefaults() (Options, error) {
	if o.Dir == "" {
		return o, errors.New("no directory given for the buckets")
	}
	fi, err := os.Stat(o.Dir)
	if err != nil {
		return o, fmt.Errorf("directory for the buckets: %w", err)
	}
	if !fi.IsDir() {
		return o, fmt.Errorf("%s is not a directory", o.Dir)
	}
	// The backend changes the current directory, so nothing may stay relative.
	for _, p := range []*string{&o.Dir, &o.MetadataDir, &o.IAMDir, &o.CertFile, &o.KeyFile} {
		if *p == "" {
			continue
		}
		if *p, err = filepath.Abs(*p); err != nil {
			return o, err
		}
	}
	return o, nil
}
