package store

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// Options configure Open. The zero value of every field has a meaning.
type Options struct {
	// Endpoint is a URL or host[:port] (then https). "" takes
	// AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, or Amazon S3.
	Endpoint string
	// Region "" takes AWS_REGION, AWS_DEFAULT_REGION, the profile's, us-east-1.
	Region string
	// Profile of the shared files; "" takes AWS_PROFILE, then "default".
	// A profile named here is asked before the environment's keys.
	Profile string
	// Credentials nil means the standard chain.
	Credentials *credentials.Credentials

	// RDMA nil means HTTP only. It must be a client of the same endpoint.
	RDMA RDMA
	Mode Mode
	// RDMAMinSize and RDMAChunkSize (bytes) are those of the RDMA client:
	// 64 KiB and 16 MiB. Bytes that go by HTTP in transfers of RDMAMinSize and
	// more are counted in Stats.HTTPDataBytesEligible.
	RDMAMinSize, RDMAChunkSize int64

	// ChunkSize is the largest HTTP range of a split read, bytes; 8 MiB.
	ChunkSize int64
	// Parallel is how many chunks of one read, or copied parts, are in flight; 8.
	Parallel int
	// MaxConns bounds the HTTP connections to the endpoint; 64.
	MaxConns int

	// RetryFor bounds the time from the first try to the last; 2 min.
	// Callers bound it further by their context.
	RetryFor time.Duration
	// Timeout ends one try of a control request, and a data transfer in which
	// no byte moved for as long; 30 s.
	Timeout time.Duration
	// CommitTimeout ends one try of a request the server may work on for
	// long without a byte (copy, complete); 10 min.
	CommitTimeout time.Duration

	Logger *slog.Logger // nil: slog.Default
}

const (
	defaultRDMAMinSize   = 64 << 10
	defaultRDMAChunkSize = 16 << 20
	defaultChunkSize     = 8 << 20
	defaultParallel      = 8
	defaultMaxConns      = 64
	defaultRetryFor      = 2 * time.Minute
	defaultTimeout       = 30 * time.Second
	defaultCommitTimeout = 10 * time.Minute
	minChunkSize         = 64 << 10
)

// Validate reports the first option that makes no sense.
func (o Options) Validate() error {
	if o.Mode < ModeAuto || o.Mode > ModeRequire {
		return fmt.Errorf("unknown RDMA mode %v", o.Mode)
	}
	if o.Mode == ModeRequire && o.RDMA == nil {
		return fmt.Errorf("%w: mode require without an RDMA client", ErrRDMA)
	}
	for _, v := range []struct {
		name string
		n    int64
	}{
		{"RDMAMinSize", o.RDMAMinSize}, {"RDMAChunkSize", o.RDMAChunkSize}, {"ChunkSize", o.ChunkSize},
		{"Parallel", int64(o.Parallel)}, {"MaxConns", int64(o.MaxConns)},
		{"RetryFor", int64(o.RetryFor)}, {"Timeout", int64(o.Timeout)}, {"CommitTimeout", int64(o.CommitTimeout)},
	} {
		if v.n < 0 {
			return fmt.Errorf("negative %s", v.name)
		}
	}
	if o.ChunkSize != 0 && o.ChunkSize < minChunkSize {
		return fmt.Errorf("ChunkSize %d is below %d", o.ChunkSize, minChunkSize)
	}
	if o.RDMAChunkSize != 0 && o.RDMAChunkSize < max(o.RDMAMinSize, minChunkSize) {
		return fmt.Errorf("RDMAChunkSize %d is below the smallest RDMA transfer", o.RDMAChunkSize)
	}
	_, err := parseEndpoint(o.Endpoint)
	return err
}

func (o Options) withDefaults() Options {
	setDefault(&o.RDMAMinSize, defaultRDMAMinSize)
	setDefault(&o.RDMAChunkSize, defaultRDMAChunkSize)
	setDefault(&o.ChunkSize, defaultChunkSize)
	setDefault(&o.Parallel, defaultParallel)
	setDefault(&o.MaxConns, defaultMaxConns)
	setDefault(&o.RetryFor, defaultRetryFor)
	setDefault(&o.Timeout, defaultTimeout)
	setDefault(&o.CommitTimeout, defaultCommitTimeout)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

func setDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}
