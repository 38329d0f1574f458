package rctest

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"s3rdmafs/rc/rctest/sigv4"
)

// Secret is the secret of access keys unless Options.Keys says otherwise.
const Secret = "secret"

// Region is that of every peer which checks signatures.
const Region = "us-east-1"

const skew = 15 * time.Minute

// authenticate verifies a signature as section 6 says. It returns the identity
// that sessions belong to, or what is wrong.
func (p *Peer) authenticate(r *http.Request) (identity string, wrong Situation) {
	pr := &p.o.Profile
	if pr.Service == "" {
		return "", ""
	}
	header := r.Header.Get("Authorization")
	if header == "" {
		return "", Anonymous
	}
	a, err := sigv4.Parse(header)
	if err != nil {
		return "", BadSignature
	}
	secret := Secret
	if p.o.Keys != nil {
		var known bool
		if secret, known = p.o.Keys[a.AccessKey]; !known {
			return "", UnknownKey
		}
	}
	if a.Region != Region || a.Service != pr.Service {
		return "", OtherScope
	}
	for name := range r.Header {
		if strings.HasPrefix(name, "X-Amz-Rdma-") && !slices.Contains(a.Signed, strings.ToLower(name)) {
			return "", UnsignedHeader
		}
	}
	hash := r.Header.Get("X-Amz-Content-Sha256")
	switch hash {
	case sigv4.EmptyHash:
	case "":
		if p.refuses(NoPayloadHash) {
			return "", NoPayloadHash
		}
		hash = sigv4.EmptyHash
	case "UNSIGNED-PAYLOAD":
		if p.refuses(UnsignedPayload) {
			return "", UnsignedPayload
		}
	default:
		return "", OtherPayloadHash
	}
	at, err := time.Parse(sigv4.DateFormat, r.Header.Get("X-Amz-Date"))
	if err != nil || time.Since(at).Abs() > skew {
		return "", Skewed
	}
	if a.Sum(r, hash, secret) != a.Signature {
		return "", BadSignature
	}
	if pr.Identity == IdentityKey {
		return a.AccessKey, ""
	}
	return a.AccessKey + ":" + secret + ":" + r.Header.Get("X-Amz-Security-Token"), ""
}
