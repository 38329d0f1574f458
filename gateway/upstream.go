package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/backend/s3proxy"
)

// upstreamConns is how many idle connections to the service are kept.
const upstreamConns = 128

// upstreamTimes are limits for the service behind the gateway; the time that the
// gateway's own client takes does not count.
type upstreamTimes struct {
	connect time.Duration // each of TCP and TLS
	// answer is from the end of the request to the head of the answer. Services
	// put large uploads together before they answer.
	answer time.Duration
	stall  time.Duration // without a byte of a body
}

var defaultUpstreamTimes = upstreamTimes{connect: 10 * time.Second, answer: 5 * time.Minute, stall: time.Minute}

// openUpstream opens versitygw's proxy backend with a client of ours: its own
// keeps two idle connections, and asks for checksums that the SDK cannot send
// over plain HTTP for a body it cannot seek in.
//
// All requests to the service end with ctx.
func openUpstream(ctx context.Context, u Upstream, limits upstreamTimes) (backend.Backend, error) {
	transport := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: limits.connect}).DialContext,
		TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: u.Insecure},
		TLSHandshakeTimeout:   limits.connect,
		ResponseHeaderTimeout: limits.answer,
		MaxIdleConnsPerHost:   upstreamConns,
		IdleConnTimeout:       time.Minute,
		WriteBufferSize:       64 << 10,
		ReadBufferSize:        64 << 10,
	}
	client := s3.New(s3.Options{
		BaseEndpoint: aws.String(u.Endpoint),
		Region:       u.Region,
		UsePathStyle: true,
		HTTPClient:   &upstreamClient{ctx: ctx, stall: limits.stall, client: http.Client{Transport: transport}},
		// A body that was read in part cannot be sent again.
		Retryer:                    aws.NopRetryer{},
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenRequired,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: u.AccessKey, SecretAccessKey: u.SecretKey}, nil
		}),
	})
	be, err := s3proxy.NewWithClient(ctx, client, "")
	if err != nil {
		return nil, fmt.Errorf("backend endpoint %s: %w", u.Endpoint, err)
	}
	return be, nil
}

// upstreamClient sends requests under a context of its own instead of the
// caller's, unless that is an ownContext: versitygw passes the server's request as
// context, which is used again for the next request while net/http may still look
// at it.
type upstreamClient struct {
	ctx    context.Context
	stall  time.Duration
	client http.Client
}

type ownContextKey struct{}

// ownContext marks ctx as one that may be used after a call it was passed to.
func ownContext(ctx context.Context) context.Context {
	return context.WithValue(ctx, ownContextKey{}, true)
}

// Do sends r. The request ends when the service takes no byte of its body, or
// sends none of the answer's, for too long.
func (c *upstreamClient) Do(r *http.Request) (*http.Response, error) {
	ctx := c.ctx
	if r.Context().Value(ownContextKey{}) != nil {
		ctx = r.Context()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	w := &stallWatch{limit: c.stall, cancel: cancel}
	r = r.WithContext(ctx)
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &sentBody{ReadCloser: r.Body, watch: w}
	}
	resp, err := c.client.Do(r)
	w.disarm()
	if err != nil {
		err = explain(ctx, err)
		cancel(nil)
		return nil, err
	}
	resp.Body = &receivedBody{ReadCloser: resp.Body, ctx: ctx, watch: w}
	return resp, nil
}

// stalledError is the cause of a request's end for lack of progress.
type stalledError struct{ limit time.Duration }

func (e stalledError) Error() string {
	return fmt.Sprintf("no progress for %v at the service behind the gateway", e.limit)
}

// explain names the cause of an error of a request under ctx.
func explain(ctx context.Context, err error) error {
	if cause := (stalledError{}); err != io.EOF && errors.As(context.Cause(ctx), &cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// stallWatch ends a request when it stays armed for too long.
type stallWatch struct {
	limit  time.Duration
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	timer *time.Timer
}

func (w *stallWatch) arm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer == nil {
		w.timer = time.AfterFunc(w.limit, func() { w.cancel(stalledError{w.limit}) })
		return
	}
	w.timer.Reset(w.limit)
}

func (w *stallWatch) disarm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
	}
}

// sentBody is a request's body: between two reads its bytes are on their way to
// the service.
type sentBody struct {
	io.ReadCloser
	watch *stallWatch
}

func (b *sentBody) Read(p []byte) (int, error) {
	b.watch.disarm()
	n, err := b.ReadCloser.Read(p)
	b.watch.arm()
	return n, err
}

// Close is called when the body was sent or is given up.
func (b *sentBody) Close() error {
	b.watch.disarm()
	return b.ReadCloser.Close()
}

// receivedBody is an answer's body: while it is read its bytes are to come.
type receivedBody struct {
	io.ReadCloser
	ctx   context.Context
	watch *stallWatch
}

func (b *receivedBody) Read(p []byte) (int, error) {
	b.watch.arm()
	n, err := b.ReadCloser.Read(p)
	b.watch.disarm()
	if err != nil {
		err = explain(b.ctx, err)
	}
	return n, err
}

func (b *receivedBody) Close() error {
	err := b.ReadCloser.Close()
	b.watch.cancel(nil)
	return err
}
