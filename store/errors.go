package store

import (
	"errors"
	"fmt"
	"strings"
)

// Kinds of errors. Every error of a Store or Upload method is an *Error that wraps
// one of them, or context.Canceled. When the caller's context ended while retrying,
// the error wraps the context's error besides the kind of the last failure.
var (
	ErrNotFound       = errors.New("no such object")
	ErrNoBucket       = errors.New("no such bucket")
	ErrDenied         = errors.New("access denied")
	ErrBadCredentials = errors.New("credentials rejected")
	ErrPrecondition   = errors.New("precondition failed") // the key has another ETag than Cond wants
	ErrExists         = errors.New("already exists")      // Cond.IfAbsent, or the bucket
	ErrChanged        = errors.New("object changed")      // the version asked for is not there any more
	ErrThrottled      = errors.New("server busy")
	ErrTimeout        = errors.New("timed out")
	ErrArchived       = errors.New("object archived")
	ErrLocked         = errors.New("object locked")
	ErrTooLarge       = errors.New("too large")
	ErrNotEmpty       = errors.New("bucket not empty")
	ErrUnavailable    = errors.New("service unavailable")
	ErrInvalidName    = errors.New("invalid name")
	ErrNotDirectory   = errors.New("a parent is an object")             // on servers that keep keys as paths
	ErrIsDirectory    = errors.New("a directory of that name is there") // likewise
	ErrUnsupported    = errors.New("not supported by the server")
	ErrNoUpload       = errors.New("no such upload")
	ErrNoSpace        = errors.New("no space left")
	ErrRefused        = errors.New("request refused") // any other answer
	ErrBadRange       = errors.New("range outside the object")
	ErrBadAnswer      = errors.New("wrong answer")         // the server's answer contradicts the request; never believed
	ErrRDMA           = errors.New("RDMA transfer failed") // mode require
)

// ErrNoCredentials is ErrBadCredentials where there are none to sign with; nothing
// was sent.
var ErrNoCredentials error = noCredentials{}

type noCredentials struct{}

func (noCredentials) Error() string        { return "no credentials found" }
func (noCredentials) Is(target error) bool { return target == ErrBadCredentials }

// Error tells what failed. errors.Is(err, ErrNotFound) and so on look at Kind;
// errors.As finds Err's chain too.
type Error struct {
	Op          string // "Head", "Read", …
	Bucket, Key string
	Kind        error
	Status      int    // HTTP status, 0 when no answer came
	Code        string // S3 error code, "" when none
	Err         error  // cause; may be nil
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s s3://%s", e.Op, e.Bucket)
	if e.Key != "" {
		fmt.Fprintf(&b, "/%s", e.Key)
	}
	if e.Err == nil || !errors.Is(e.Err, e.Kind) {
		fmt.Fprintf(&b, ": %v", e.Kind)
	}
	switch {
	case e.Code != "" && e.Status != 0:
		fmt.Fprintf(&b, " (%d %s)", e.Status, e.Code)
	case e.Status != 0:
		fmt.Fprintf(&b, " (%d)", e.Status)
	}
	if e.Err != nil && e.Err.Error() != "" {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	return b.String()
}

// Unwrap gives the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}
