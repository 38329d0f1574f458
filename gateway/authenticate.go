package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/s3api/middlewares"
	"github.com/versity/versitygw/s3api/utils"

	"s3rdmafs/rc"
	"s3rdmafs/token"
)

// caller is who signed the RC request that is being answered. Its fiber
// context is only good until that request's handler returns: nothing may look
// into a caller later. For each request rc hands on the caller of that request.
type caller struct {
	ctx     fiber.Ctx
	account auth.Account
	root    bool
}

// authenticate verifies the signature of an RC request (section 6).
func (g *Gateway) authenticate(ctx fiber.Ctx, h http.Header) (rc.Principal, error) {
	authorization := h.Get("Authorization")
	if authorization == "" {
		return rc.Principal{}, accessDenied("Anonymous access to the RDMA routes is forbidden.")
	}
	data, err := utils.ParseAuthorization(authorization)
	if err != nil {
		return rc.Principal{}, g.rcError(err)
	}
	if err := checkSigned(h, strings.Split(data.SignedHeaders, ";")); err != nil {
		return rc.Principal{}, err
	}
	if err := g.verify(ctx); err != nil {
		return rc.Principal{}, g.rcError(err)
	}
	account := utils.ContextKeyAccount.Get(ctx).(auth.Account)
	return rc.Principal{
		ID: principalID(account.Access, h.Get("X-Amz-Security-Token")),
		Value: &caller{
			ctx:     ctx,
			account: account,
			root:    utils.ContextKeyIsRoot.Get(ctx).(bool),
		},
	}, nil
}

// verifier is versitygw's check of header signatures, as for an S3 operation
// without payload.
func verifier(o Options, iam auth.IAMService) fiber.Handler {
	root := middlewares.RootUserConfig{Access: o.AccessKey, Secret: o.SecretKey}
	return middlewares.VerifyV4Signature(root, iam, o.Region, false, true, false)
}

// principalID tells principals apart by access key and session token; the
// token itself stays out of it.
func principalID(accessKey, sessionToken string) string {
	if sessionToken == "" {
		return accessKey
	}
	sum := sha256.Sum256([]byte(sessionToken))
	return accessKey + "/" + hex.EncodeToString(sum[:])
}

// checkSigned refuses a request with a header that matters and that is not
// under the signature, or comes twice: the signature is over one reading of
// the values, which need not be the protocol's.
func checkSigned(h http.Header, signed []string) error {
	for name, values := range h {
		if !strings.HasPrefix(name, token.HeaderPrefix) && !strings.HasPrefix(name, "If-") {
			continue
		}
		if len(values) != 1 {
			return &rc.S3Error{Status: http.StatusBadRequest, Code: "InvalidRdmaRequest", Message: "The header " + name + " is given more than once."}
		}
		if !slices.Contains(signed, strings.ToLower(name)) {
			return accessDenied("The header " + name + " is present in the request but not signed.")
		}
	}
	return nil
}
