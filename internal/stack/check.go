package stack

import (
	"context"
	"errors"
	"fmt"
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
		_, err = s.Store.List(ctx, store.ListRequest{Bucket: bucket, Prefix: prefix, Max: 1})
	}
	endpoint := s.Config.Endpoint
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrNoBucket):
		return fmt.Errorf("no such bucket %q at %s", bucket, endpoint)
	case errors.Is(err, store.ErrBadCredentials):
		return fmt.Errorf("%s refuses the credentials (from %s): %w", endpoint, s.Config.CredentialsSource(), err)
	case errors.Is(err, store.ErrDenied):
		return fmt.Errorf("%s denies access to s3://%s/%s with the credentials from %s: %w", endpoint, bucket, prefix, s.Config.CredentialsSource(), err)
	case errors.Is(err, store.ErrTimeout), errors.Is(err, store.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no usable answer from the endpoint %s: %w", endpoint, err)
	}
	return fmt.Errorf("endpoint %s: %w", endpoint, err)
}
