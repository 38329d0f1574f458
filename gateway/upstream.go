package gateway

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/backend/s3proxy"
)

// upstreamConns is how many idle connections to the service are kept.
const upstreamConns = 128

// openUpstream opens versitygw's proxy backend with a client of ours: its own
// keeps two idle connections, and asks for checksums that the SDK cannot send
// over plain HTTP for a body it cannot seek in.
//
// ctx is the context of all requests to the service.
func openUpstream(ctx context.Context, u Upstream) (backend.Backend, error) {
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: u.Insecure},
		MaxIdleConnsPerHost: upstreamConns,
		IdleConnTimeout:     time.Minute,
		WriteBufferSize:     64 << 10,
		ReadBufferSize:      64 << 10,
	}
	client := s3.New(s3.Options{
		BaseEndpoint: aws.String(u.Endpoint),
		Region:       u.Region,
		UsePathStyle: true,
		HTTPClient:   &detachedClient{ctx: ctx, client: http.Client{Transport: transport}},
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

// detachedClient sends requests under a context of its own instead of the
// caller's: versitygw passes the server's request as context, which is used
// again for the next request while net/http may still look at it.
type detachedClient struct {
	ctx    context.Context
	client http.Client
}

func (c *detachedClient) Do(r *http.Request) (*http.Response, error) {
	return c.client.Do(r.WithContext(c.ctx))
}
