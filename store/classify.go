package store

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/minio/minio-go/v7"
)

// fate is what a failed try left behind.
type fate int

const (
	fateFinal     fate = iota // the answer is the answer
	fateRefused               // nothing happened; the same request may succeed later
	fateUncertain             // the server may or may not have done it
)

type verdict struct {
	kind error
	fate fate
}

// codes maps S3 error codes. Codes of versitygw stand beside those of AWS.
var codes = map[string]verdict{
	"NoSuchKey":     {ErrNotFound, fateFinal},
	"NoSuchVersion": {ErrNotFound, fateFinal},
	"NoSuchBucket":  {ErrNoBucket, fateFinal},
	"NoSuchUpload":  {ErrNoUpload, fateFinal},

	"AccessDenied":      {ErrDenied, fateFinal},
	"AccountProblem":    {ErrDenied, fateFinal},
	"AllAccessDisabled": {ErrDenied, fateFinal},

	"InvalidAccessKeyId":           {ErrBadCredentials, fateFinal},
	"SignatureDoesNotMatch":        {ErrBadCredentials, fateFinal},
	"XAdminUserNotFound":           {ErrBadCredentials, fateFinal},
	"InvalidToken":                 {ErrBadCredentials, fateFinal},
	"ExpiredToken":                 {ErrBadCredentials, fateFinal},
	"ExpiredTokenException":        {ErrBadCredentials, fateFinal},
	"TokenRefreshRequired":         {ErrBadCredentials, fateFinal},
	"InvalidClientTokenId":         {ErrBadCredentials, fateFinal},
	"RequestTimeTooSkewed":         {ErrBadCredentials, fateFinal},
	"AuthorizationHeaderMalformed": {ErrBadCredentials, fateFinal},
	"NotSignedUp":                  {ErrBadCredentials, fateFinal},

	"PreconditionFailed":         {ErrPrecondition, fateFinal},
	"ConditionalRequestConflict": {ErrPrecondition, fateRefused},
	"OperationAborted":           {ErrThrottled, fateRefused},

	"BucketAlreadyExists":     {ErrExists, fateFinal},
	"BucketAlreadyOwnedByYou": {ErrExists, fateFinal},
	"BucketNotEmpty":          {ErrNotEmpty, fateFinal},

	"SlowDown":                   {ErrThrottled, fateRefused},
	"SlowDownRead":               {ErrThrottled, fateRefused},
	"SlowDownWrite":              {ErrThrottled, fateRefused},
	"Throttling":                 {ErrThrottled, fateRefused},
	"ThrottlingException":        {ErrThrottled, fateRefused},
	"RequestThrottled":           {ErrThrottled, fateRefused},
	"RequestLimitExceeded":       {ErrThrottled, fateRefused},
	"TooManyRequests":            {ErrThrottled, fateRefused},
	"ServiceUnavailable":         {ErrUnavailable, fateRefused},
	"RequestTimeout":             {ErrTimeout, fateRefused},
	"InternalError":              {ErrUnavailable, fateUncertain},
	"XMinioServerNotInitialized": {ErrUnavailable, fateRefused},

	"InvalidObjectState": {ErrArchived, fateFinal},
	"ObjectLocked":       {ErrLocked, fateFinal},
	"InvalidRange":       {ErrBadRange, fateFinal},

	"EntityTooLarge":    {ErrTooLarge, fateFinal},
	"MetadataTooLarge":  {ErrTooLarge, fateFinal},
	"QuotaExceeded":     {ErrNoSpace, fateFinal},
	"XMinioStorageFull": {ErrNoSpace, fateFinal},

	"KeyTooLongError":         {ErrInvalidName, fateFinal},
	"InvalidBucketName":       {ErrInvalidName, fateFinal},
	"InvalidURI":              {ErrInvalidName, fateFinal},
	"XMinioInvalidObjectName": {ErrInvalidName, fateFinal},

	"ObjectParentIsFile":            {ErrNotDirectory, fateFinal},
	"XMinioParentIsObject":          {ErrNotDirectory, fateFinal},
	"ExistingObjectIsDirectory":     {ErrIsDirectory, fateFinal},
	"XMinioObjectExistsAsDirectory": {ErrIsDirectory, fateFinal},

	"NotImplemented":              {ErrUnsupported, fateFinal},
	"MethodNotAllowed":            {ErrUnsupported, fateFinal},
	"APINotSupported":             {ErrUnsupported, fateFinal},
	"DirectoryObjectContainsData": {ErrUnsupported, fateFinal},
}

// statuses decides where the code is unknown. A 404 or 405 without a known code
// says nothing about the object.
var statuses = map[int]verdict{
	http.StatusUnauthorized:                 {ErrBadCredentials, fateFinal},
	http.StatusForbidden:                    {ErrDenied, fateFinal},
	http.StatusRequestTimeout:               {ErrTimeout, fateRefused},
	http.StatusPreconditionFailed:           {ErrPrecondition, fateFinal},
	http.StatusRequestEntityTooLarge:        {ErrTooLarge, fateFinal},
	http.StatusRequestedRangeNotSatisfiable: {ErrBadRange, fateFinal},
	http.StatusTooManyRequests:              {ErrThrottled, fateRefused},
	http.StatusNotImplemented:               {ErrUnsupported, fateFinal},
	http.StatusServiceUnavailable:           {ErrThrottled, fateRefused},
	http.StatusInsufficientStorage:          {ErrNoSpace, fateFinal},
}

// verdictOf is the one mapping from an S3 answer to a kind.
func verdictOf(status int, code string) verdict {
	if v, ok := codes[code]; ok {
		return v
	}
	if v, ok := statuses[status]; ok {
		return v
	}
	switch {
	case status >= 500:
		return verdict{ErrUnavailable, fateUncertain}
	case status/100 == 2:
		// A success whose body says something else.
		return verdict{ErrBadAnswer, fateUncertain}
	}
	return verdict{ErrRefused, fateFinal}
}

// tokenExpired reports whether fresh credentials may make the request pass.
func tokenExpired(e *Error) bool {
	switch e.Code {
	case "ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken":
		return true
	}
	return false
}

// judge wraps the error of one try of c. ctx is the caller's, not the try's.
func (s *Store) judge(ctx context.Context, c call, err error) (*Error, fate) {
	e := &Error{Op: c.op, Bucket: c.bucket, Key: c.key, Err: err}
	var mine *Error
	var local notSentError
	var resp minio.ErrorResponse
	switch {
	case errors.As(err, &mine):
		return mine, verdictFate(mine)
	case ctx.Err() != nil:
		e.Kind = ctx.Err()
		if errors.Is(e.Kind, context.DeadlineExceeded) {
			e.Kind, e.Err = ErrTimeout, errors.Join(ctx.Err(), err)
		}
		return e, fateUncertain
	case errors.As(err, &resp) && !errors.As(err, &local):
		v := verdictOf(resp.StatusCode, resp.Code)
		e.Status, e.Code, e.Kind = resp.StatusCode, resp.Code, v.kind
		e.Err = message(resp)
		return e, v.fate
	case errors.Is(err, ErrBadCredentials):
		e.Kind = ErrBadCredentials
		if s.everAnswered() {
			return e, fateRefused
		}
		return e, fateFinal
	case errors.Is(err, ErrBadAnswer):
		e.Kind = ErrBadAnswer
		return e, fateUncertain
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.Is(err, errStalled):
		e.Kind = ErrTimeout
		return e, fateUncertain
	}
	if errors.As(err, &local) && !isNetwork(local.error) {
		e.Kind, e.Err = ErrInvalidName, local.error
		if v, ok := codes[resp.Code]; ok {
			e.Kind = v.kind
		}
		return e, fateFinal
	}
	e.Kind = ErrUnavailable
	if hint := s.schemeHint(err); hint != nil {
		e.Err = hint
		return e, fateFinal
	}
	return e, fateOfNetwork(err)
}

// isNetwork is for what providers of credentials met on their own ways.
func isNetwork(err error) bool {
	var request *url.Error
	var network net.Error
	return errors.As(err, &request) || errors.As(err, &network)
}

// schemeHint says what is to be changed where one end speaks TLS and the other does
// not; else nil.
func (s *Store) schemeHint(err error) error {
	switch {
	case errors.Is(err, http.ErrSchemeMismatch):
		return fmt.Errorf("the endpoint speaks plain HTTP: use http://%s", s.c.Endpoint.Host)
	case s.c.Endpoint.Scheme == "http" && strings.Contains(err.Error(), tlsAlert):
		return fmt.Errorf("the endpoint speaks TLS: use https://%s", s.c.Endpoint.Host)
	}
	return nil
}

// tlsAlert is how net/http cites the alert by which a TLS server answers plain HTTP.
const tlsAlert = `malformed HTTP response "\x15\x03`

// verdictFate is for errors that were judged before.
func verdictFate(e *Error) fate {
	if e.Status != 0 || e.Code != "" {
		return verdictOf(e.Status, e.Code).fate
	}
	return fateFinal
}

// message keeps what the server said beyond the code.
func message(r minio.ErrorResponse) error {
	if r.Message == "" || r.Message == r.Code {
		return nil
	}
	return errors.New(strings.TrimSuffix(r.Message, "."))
}

// fateOfNetwork judges a request without an answer.
func fateOfNetwork(err error) fate {
	var (
		op       *net.OpError
		cert     *tls.CertificateVerificationError
		hostname x509.HostnameError
		record   tls.RecordHeaderError
		dns      *net.DNSError
	)
	switch {
	case errors.As(err, &cert), errors.As(err, &hostname), errors.As(err, &record):
		return fateFinal
	case errors.As(err, &dns) && dns.IsNotFound:
		return fateFinal
	case errors.As(err, &op) && op.Op == "dial":
		return fateRefused
	}
	return fateUncertain
}
