package store

import (
	"time"

	"s3rdmafs/verbs"
)

// Limits of the S3 API, in bytes and parts.
const (
	MaxKeyLen     = 1024
	MaxParts      = 10000
	MinPartSize   = 5 << 20 // every part but the last
	MaxPartSize   = 5 << 30
	MaxSinglePut  = 5 << 30
	MaxObjectSize = 5 << 40
)

// Info describes an object or, in a listing with delimiter, a common prefix.
type Info struct {
	Bucket, Key  string
	Size         int64             // bytes
	ETag         string            // without quotes
	ModTime      time.Time         // of the object in S3, one second resolution from Head
	Meta         map[string]string // user metadata, lower-case keys without x-amz-meta-; nil from List
	ContentType  string            // "" from List
	StorageClass string
	IsPrefix     bool // Key is a common prefix and ends in "/"; nothing else is set
}

// Bucket is one entry of Buckets.
type Bucket struct {
	Name    string
	Created time.Time
}

// Cond is the precondition of a write. The zero value sets none.
type Cond struct {
	IfMatch  string // ETag without quotes the key must have
	IfAbsent bool   // the key must not exist
}

// IsZero reports whether nothing is asked.
func (c Cond) IsZero() bool { return c == Cond{} }

// ListRequest asks for one page of a bucket's keys.
type ListRequest struct {
	Bucket, Prefix string
	Recursive      bool   // false: keys beyond the next "/" are rolled up into prefixes
	StartAfter     string // only keys after this one; ignored when Token is set
	Token          string // Page.Next of the page before
	Max            int    // entries wanted, 0 or above 1000: 1000
}

// Page is a part of a listing in key order. Next is "" on the last page.
type Page struct {
	Infos []Info
	Next  string
}

// ReadRequest asks for len(Dst.Buf) bytes at Off of the version ETag. The whole
// range lies inside the object.
type ReadRequest struct {
	Bucket, Key string
	ETag        string
	Off         int64
	Dst         verbs.Segment
	ObjectSize  int64 // bytes, of that version
	// RDMAFailed is told, if not nil, of each RDMA transfer into Dst that failed
	// after the peer had learned where to write, also if HTTP brought the bytes in
	// the end. It is called before Read returns, by several goroutines.
	RDMAFailed func(error)
}

// PutRequest stores one object from one segment of at most MaxSinglePut bytes.
type PutRequest struct {
	Bucket, Key string
	Src         verbs.Segment // may be empty
	Meta        map[string]string
	ContentType string // "": application/octet-stream
	Cond        Cond
}

// CopyRequest copies an object on the server.
type CopyRequest struct {
	Bucket, Key string // source
	DstBucket   string // "": the source's
	DstKey      string
	SrcETag     string            // "": any version
	Meta        map[string]string // nil: the source's; else replaces all user metadata
	ContentType string            // "": the source's; used only with Meta
	Cond        Cond              // on the destination
}
