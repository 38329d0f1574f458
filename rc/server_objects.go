package rc

import (
	"context"
	"errors"
	"fmt"
	"io"

	"s3rdmafs/token"
)

// Principal is who signed a control request.
type Principal struct {
	// ID tells principals apart: access key and identity of the session token.
	// A session belongs to the ID that sent its PREPARE.
	ID string
	// Value is the Objects implementation's own, handed back to it unseen.
	Value any
}

// Conditions are the preconditions of extension "cond". At most one is set.
type Conditions struct {
	IfMatch     string // ETag without quotes, or "*"
	IfNoneMatch string // "*"
}

// Range is an opened object, cut to the bytes asked for.
type Range struct {
	// Size is the number of bytes that Reader delivers: what was asked for, or
	// less when the object ends before.
	Size      int64
	ETag      string // without quotes, "" when unknown
	VersionID string // "" when not versioned
	// Reader delivers one version of the object. The server closes it.
	Reader io.ReadCloser
}

// StoreOptions are what an ordinary PutObject would carry in its headers.
type StoreOptions struct {
	Conditions
	Meta        map[string]string // names without x-amz-meta-
	ContentType string
}

// Stored describes an object or part after it was stored.
type Stored struct {
	ETag      string // without quotes
	VersionID string // "" when not versioned
}

// Objects is the store behind a Server. All methods are called concurrently.
// Errors are *S3Error, or ErrUseHTTP for what only HTTP can serve; any other is
// answered with 500 InternalError.
//
// A ctx ends when the time for the transfer is over, or the server breaks off; all
// methods should return soon after.
type Objects interface {
	// Authorize decides whether p may do op on t: object read or write, with
	// policies, read-only mode and object lock. It is called for PREPARE, READY
	// and NEXT. An access key that is no longer valid must be refused here too.
	Authorize(ctx context.Context, p Principal, op Op, t token.Target) error
	// OpenRange opens size bytes from off on, fewer when the object ends before;
	// InvalidRange when it ends at off or before. off+size does not overflow. Reads
	// from the Range's Reader should end with ctx, too.
	OpenRange(ctx context.Context, p Principal, t token.Target, off, size int64, c Conditions) (Range, error)
	// Store stores data as the object, or as the part when t.IsPart(). data is
	// staging memory, valid until Store returns; the client could still change
	// it, so it must be read once. An error after ctx has ended, unless it is an
	// S3Error below 500, leaves it open whether data was stored.
	Store(ctx context.Context, p Principal, t token.Target, data []byte, o StoreOptions) (Stored, error)
}

// ErrUseHTTP says that an object or query cannot be served by RDMA but may well
// be by HTTP; it is answered with 501 and the marker of section 10.2.
var ErrUseHTTP = errors.New("only served by HTTP")

// S3Error is an answer with an S3 error body.
type S3Error struct {
	Status  int
	Code    string
	Message string
}

func (e *S3Error) Error() string { return fmt.Sprintf("%s (%d): %s", e.Code, e.Status, e.Message) }
