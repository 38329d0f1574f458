package token

import (
	"context"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// EmptyPayloadHash is the SHA-256 of no bytes, the payload hash of every control
// request.
const EmptyPayloadHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// Credentials sign control requests. SessionToken is "" for long-lived keys.
type Credentials struct {
	AccessKey, SecretKey, SessionToken string
}

// Sign adds the headers of a SigV4 signature to r (section 6): date, payload hash,
// session token and Authorization. All headers that r has are signed, so it must
// be called after the last one was set. r must have no body.
func Sign(r *http.Request, c Credentials, region, service string, at time.Time) error {
	r.Header.Set("X-Amz-Content-Sha256", EmptyPayloadHash)
	// A new signer each time: one keeps derived keys by access key alone, and
	// would go on signing with a secret that was replaced.
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	return signer.SignHTTP(context.Background(), aws.Credentials{
		AccessKeyID:     c.AccessKey,
		SecretAccessKey: c.SecretKey,
		SessionToken:    c.SessionToken,
	}, r, EmptyPayloadHash, service, region, at)
}
