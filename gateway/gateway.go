package gateway

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/s3api"
	"github.com/versity/versitygw/s3api/middlewares"
	"github.com/versity/versitygw/s3api/utils"

	"s3rdmafs/rc"
	"s3rdmafs/verbs"
)

// Limits of versitygw's own, as its command line sets them.
const (
	maxConnections = 250000
	maxRequests    = 100000
)

// rdmaEnd bounds how long sessions may take to end once no request is left.
const rdmaEnd = 5 * time.Second

// Gateway is an S3 server with the RC routes beside it. Serve it once; all
// methods may be called concurrently.
type Gateway struct {
	opts Options
	log  *slog.Logger
	be   backend.Backend
	iam  auth.IAMService
	app  *fiber.App
	cert *tls.Certificate

	rdma   *rdmaSide     // nil without RDMA
	verify fiber.Handler // of the signature of an RC request
	// files is the directory of the buckets when an object's file has
	// everything there is to know about it, "" otherwise.
	files string

	// base is the context of everything done for clients. It ends after the
	// requests under way have ended, or after their time is over.
	base   context.Context
	cancel context.CancelFunc

	mu     sync.Mutex
	ln     *trackedListener
	closed bool

	closeOnce sync.Once
	closeErr  error
}

// New opens the backend and prepares the gateway for Serve. On success the
// caller must Close it; the RDMA device stays the caller's.
func New(o Options) (*Gateway, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	g := &Gateway{opts: o, log: o.Logger}
	if o.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("certificate %s with key %s: %w", o.CertFile, o.KeyFile, err)
		}
		g.cert = &cert
	}
	if g.iam, err = openIAM(o); err != nil {
		return nil, err
	}
	g.base, g.cancel = context.WithCancel(context.Background())
	if err := g.open(); err != nil {
		return nil, errors.Join(err, g.shutdownParts())
	}
	return g, nil
}

// open makes the parts of the gateway that shutdownParts closes.
func (g *Gateway) open() error {
	if err := g.openBackend(); err != nil {
		return err
	}
	for _, b := range g.opts.Buckets {
		if err := g.ensureBucket(g.base, b); err != nil {
			return fmt.Errorf("bucket %s: %w", b, readable(err))
		}
	}
	root := middlewares.RootUserConfig{Access: g.opts.AccessKey, Secret: g.opts.SecretKey}
	opts := []s3api.Option{
		s3api.WithConcurrencyLimiter(maxConnections, maxRequests),
		s3api.WithKeepAlive(),
		s3api.WithQuiet(),
		s3api.WithMiddleware("/", g.logFailures),
	}
	if g.opts.ReadOnly {
		opts = append(opts, s3api.WithReadOnly())
	}
	if g.opts.IAMDir != "" {
		opts = append(opts, s3api.WithAdminServer())
	}
	if g.opts.RDMA != nil {
		var err error
		if g.rdma, err = openRDMA(*g.opts.RDMA, objects{g}, g.log); err != nil {
			return err
		}
		g.verify = verifier(g.opts, g.iam)
	}
	if !g.opts.NoRCRoutes {
		opts = append(opts, g.routes()...)
	}
	srv, err := s3api.New(g.be, root, g.opts.Region, g.iam, nil, nil, nil, nil, opts...)
	if err != nil {
		return fmt.Errorf("S3 server: %w", err)
	}
	if g.app, err = fiberApp(srv); err != nil {
		return err
	}
	g.answerUnreadable()
	return nil
}

func (g *Gateway) openBackend() error {
	if g.opts.Backend == BackendS3 {
		be, err := openUpstream(g.base, g.opts.Upstream, defaultUpstreamTimes)
		g.be = be
		return err
	}
	be, err := openPosix(g.opts)
	if err != nil {
		return err
	}
	g.be = &consistentReads{Backend: be, dir: be.dir}
	if be.xattrs {
		g.files = be.dir
	}
	return nil
}

// ensureBucket creates a bucket of root's unless there is one.
func (g *Gateway) ensureBucket(ctx context.Context, name string) error {
	if !utils.IsValidBucketName(name) {
		return errors.New("not a valid bucket name")
	}
	if _, err := g.be.HeadBucket(ctx, &s3.HeadBucketInput{Bucket: &name}); err == nil {
		return nil
	}
	owner := auth.Account{Access: g.opts.AccessKey, Role: auth.RoleAdmin}
	acl, err := json.Marshal(auth.ACL{Owner: owner.Access})
	if err != nil {
		return err
	}
	//lint:ignore SA1029 the key is versitygw's
	ctx = context.WithValue(ctx, string(utils.ContextKeyBucketOwner), owner)
	return g.be.CreateBucket(ctx, &s3.CreateBucketInput{
		Bucket:                    &name,
		ObjectOwnership:           types.ObjectOwnershipBucketOwnerEnforced,
		CreateBucketConfiguration: &types.CreateBucketConfiguration{},
	}, acl)
}

// Serve answers requests on ln until Close, and then returns nil. It takes ln
// over.
func (g *Gateway) Serve(ln net.Listener) error {
	tl := newTrackedListener(ln)
	g.mu.Lock()
	closed, served := g.closed, g.ln != nil
	if closed || served {
		g.mu.Unlock()
		ln.Close()
		if closed {
			return nil
		}
		return errors.New("gateway: served already")
	}
	g.ln = tl
	g.mu.Unlock()

	var serve net.Listener = tl
	if g.cert != nil {
		serve = tls.NewListener(tl, &tls.Config{
			MinVersion:   tls.VersionTLS12,
			Certificates: []tls.Certificate{*g.cert},
		})
	}
	err := g.app.Listener(serve, fiber.ListenConfig{DisableStartupMessage: true})
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	return err
}

// Addr is the address that the gateway is served on, nil before Serve.
func (g *Gateway) Addr() net.Addr {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ln == nil {
		return nil
	}
	return g.ln.Addr()
}

// URL is the endpoint for clients of a gateway on ln.
func (g *Gateway) URL(ln net.Listener) string {
	if g.cert != nil {
		return "https://" + ln.Addr().String()
	}
	return "http://" + ln.Addr().String()
}

// Close ends the gateway: no more connections, requests under way may finish
// until ctx ends and are cut off then. It reports ctx's error in that case, and
// an error when the RDMA side could not be ended safely; then the device must
// stay open.
func (g *Gateway) Close(ctx context.Context) error {
	g.closeOnce.Do(func() { g.closeErr = g.close(ctx) })
	return g.closeErr
}

func (g *Gateway) close(ctx context.Context) error {
	g.mu.Lock()
	g.closed = true
	ln := g.ln
	g.mu.Unlock()
	var err error
	if ln != nil {
		ln.Close()
		ln.closeUnused()
		err = g.app.ShutdownWithContext(ctx)
		ln.closeConns()
	}
	return errors.Join(err, g.shutdownParts())
}

// shutdownParts closes what open made, in reverse order.
func (g *Gateway) shutdownParts() error {
	g.cancel()
	var err error
	if g.rdma != nil {
		ctx, cancel := context.WithTimeout(context.Background(), rdmaEnd)
		defer cancel()
		if err = g.rdma.close(ctx); err != nil {
			err = fmt.Errorf("RDMA side did not end: %w", err)
		}
	}
	if g.be != nil {
		g.be.Shutdown()
	}
	if err := g.iam.Shutdown(); err != nil {
		g.log.Warn("accounts did not shut down", slog.Any("err", err))
	}
	return err
}

// RCStats is the state of the RC server; ok is false without RDMA.
func (g *Gateway) RCStats() (stats rc.ServerStats, ok bool) {
	if g.rdma == nil {
		return rc.ServerStats{}, false
	}
	return g.rdma.server.Stats(), true
}

// QPStats is the state of the gateway's queue pairs; ok is false without RDMA.
func (g *Gateway) QPStats() (stats verbs.PoolStats, ok bool) {
	if g.rdma == nil {
		return verbs.PoolStats{}, false
	}
	return g.rdma.pool.Stats(), true
}
