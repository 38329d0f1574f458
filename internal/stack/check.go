package stack

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"s3rdmafs/store"
)

// checkTimeout bounds Check: a user waits for it at the terminal.
const checkTimeout = 10 * time.Second

// Check asks the server whether bucket and prefix can be read, and turns what
// can be wrong into one sentence. An empty bucket asks for the list of buckets;
// that this list may be denied is no error, since buckets are found by name.
func (s *Stack) Check(ctx context.Context, bucket, prefix string) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	var err error
	if bucket == "" {
		_, err = s.Store.Buckets(ctx)
		if errors.Is(err, store.ErrDenied) {
			err = nil
		}
	} else {
		var page store.Page
		page, err = s.Store.List(ctx, store.ListRequest{Bucket: bucket, Prefix: prefix, Max: 1})
		if err == nil && prefix != "" && len(page.Infos) == 0 && page.Next == "" {
			s.log.Warn("nothing is there yet", "prefix", "s3://"+bucket+"/"+prefix)
		}
	}
	endpoint := s.Config.Endpoint
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrNoBucket):
		return fmt.Errorf("no such bucket %q at %s", bucket, endpoint)
	case errors.Is(err, store.ErrBadCredentials) && status(err) == 0:
		return fmt.Errorf("credentials: %w", cause(err))
	case errors.Is(err, store.ErrBadCredentials):
		return fmt.Errorf("%s refuses the credentials from %s: %w", endpoint, s.Config.CredentialsSource(), cause(err))
	case errors.Is(err, store.ErrDenied):
		return fmt.Errorf("%s denies access to s3://%s/%s with the credentials from %s: %w", endpoint, bucket, prefix, s.Config.CredentialsSource(), cause(err))
	case errors.Is(err, store.ErrTimeout), errors.Is(err, store.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no usable answer from the endpoint %s: %w", endpoint, cause(err))
	}
	return fmt.Errorf("endpoint %s: %w", endpoint, err)
}

// status is that of the server's answer; 0 when there was none.
func status(err error) int {
	var e *store.Error
	if errors.As(err, &e) {
		return e.Status
	}
	return 0
}

// cause is the part of err that says something new to a user: what the network
// said, or the server, without the request that met it.
func cause(err error) error {
	var network *url.Error
	if errors.As(err, &network) {
		return network.Err
	}
	var e *store.Error
	if errors.As(err, &e) && e.Err != nil {
		return e.Err
	}
	return err
}

// CheckRDMA finds an endpoint that does not speak the protocol before the first
// transfer does, where RDMA is required.
func (s *Stack) CheckRDMA(ctx context.Context) error {
	if s.mode != store.ModeRequire {
		return nil
	}
	client := s.rails[0].client
	if err := client.Probe(ctx); err != nil {
		return fmt.Errorf("--rdma require: %s gives no answer to a probe: %w", s.Config.Endpoint, err)
	}
	if st := client.Stats(); !st.Usable {
		return fmt.Errorf("--rdma require: %s: %s", s.Config.Endpoint, st.Reason)
	}
	return nil
}
