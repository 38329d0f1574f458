package store

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/s3utils"
)

// Store is one S3 endpoint with one set of credentials.
type Store struct {
	o    Options
	c    Config
	log  *slog.Logger
	core *minio.Core
	base *http.Transport
	tr   http.RoundTripper

	count      counters
	firstPause time.Duration

	maxSingleCopy, copyPartSize int64 // bytes

	noETags atomic.Bool // RDMA GETs are answered without ETag

	mu       sync.Mutex
	evidence map[string]time.Time // bucket → last answer that shows bucket and credentials are good
	any      bool                 // something was answered once
}

// Open makes a store; it asks no server, so that wrong credentials or a dead
// endpoint show at the first request (BucketExists is made for it).
func Open(o Options) (*Store, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	c, err := o.Resolve()
	if err != nil {
		return nil, err
	}
	s := &Store{o: o, c: c, log: o.Logger, base: newTransport(o.MaxConns), firstPause: backoffFirst,
		maxSingleCopy: maxSingleCopy, copyPartSize: copyPartSize, evidence: make(map[string]time.Time)}
	s.tr = guard{s.base}
	if s.core, err = s.newCore(s.tr); err != nil {
		return nil, fmt.Errorf("endpoint %s: %w", c.Endpoint, err)
	}
	return s, nil
}

func (s *Store) newCore(tr http.RoundTripper) (*minio.Core, error) {
	lookup := minio.BucketLookupPath
	if s3utils.IsAmazonEndpoint(*s.c.Endpoint) {
		lookup = minio.BucketLookupAuto
	}
	return minio.NewCore(s.c.Endpoint.Host, &minio.Options{
		Creds:        s.c.Credentials,
		Secure:       s.c.Endpoint.Scheme == "https",
		Transport:    tr,
		Region:       s.c.Region,
		BucketLookup: lookup,
		MaxRetries:   1,
	})
}

// Endpoint is where requests go.
func (s *Store) Endpoint() *url.URL { u := *s.c.Endpoint; return &u }

// Region is the one requests are signed for.
func (s *Store) Region() string { return s.c.Region }

// CredentialsSource says where the credentials come from, not what they are.
func (s *Store) CredentialsSource() string { return s.c.CredentialsSource() }

// Stats returns the counters so far.
func (s *Store) Stats() Stats { return s.count.snapshot() }

// Close drops idle connections. The RDMA client stays its owner's.
func (s *Store) Close() { s.base.CloseIdleConnections() }

// evidenceFor is how long one good answer vouches for a bucket.
const evidenceFor = 2 * time.Second

// answered notes that a request to the bucket was answered as it should.
func (s *Store) answered(bucket string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.any = true
	if bucket != "" {
		s.evidence[bucket] = time.Now()
	}
}

func (s *Store) everAnswered() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.any
}

func (s *Store) vouchedFor(bucket string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.evidence[bucket]
	return ok && time.Since(at) < evidenceFor
}

func (s *Store) doubt(bucket string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.evidence, bucket)
}

// checkNames refuses what no S3 server can store, before a request is made. key "" is
// a request to the bucket.
func checkNames(c call) error {
	if err := s3utils.CheckValidBucketName(c.bucket); err != nil {
		return invalidName(c, err)
	}
	switch {
	case len(c.key) > MaxKeyLen:
		return invalidName(c, fmt.Errorf("key of %d bytes", len(c.key)))
	case !utf8.ValidString(c.key):
		return invalidName(c, errors.New("key is not UTF-8"))
	}
	return nil
}

func checkKey(c call) error {
	if strings.TrimSpace(c.key) == "" {
		return invalidName(c, errors.New("empty key")) // as minio-go sees one of white space
	}
	return checkNames(c)
}

func invalidName(c call, err error) error {
	return &Error{Op: c.op, Bucket: c.bucket, Key: c.key, Kind: ErrInvalidName, Err: err}
}
