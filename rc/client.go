package rc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"s3rdmafs/token"
	"s3rdmafs/verbs"
)

// ClientOptions configure a Client. Zero values take the defaults named here.
type ClientOptions struct {
	// Endpoint is the S3 endpoint; only scheme, host and port are used.
	Endpoint *url.URL
	// Region of the signatures; default "us-east-1".
	Region string
	// Service name in the credential scope; default "s3". HIP-ref wants "hipobj".
	Service string
	// Credentials are asked for once per session; must be safe for concurrent use.
	Credentials func(context.Context) (token.Credentials, error)
	// Transport of the control requests, of which a clone is used: no proxy, no
	// Expect. Nil takes one with keep-alive.
	Transport *http.Transport

	// Pool gives the queue pairs. Its owner closes it, after the client. It should allow
	// at least Sessions QPs, with AccessRemoteWrite.
	Pool *verbs.Pool
	// Port, GIDIndex, GID, LID and MTU are the own end, as it is told to servers.
	Port     uint8
	GIDIndex int
	GID      verbs.GID
	LID      uint16
	MTU      verbs.MTU
	// GIDs are the entries to choose from when a server's GID is of another family
	// (section 12.4). May be empty.
	GIDs []verbs.GIDEntry
	// MaxMsgSize is the port's largest message in bytes; 0 means unknown.
	MaxMsgSize       int64
	TrafficClass, SL uint8

	// MinSize and ChunkSize bound the bytes of one transfer; defaults 64 KiB, 16 MiB.
	MinSize, ChunkSize int64
	// Sessions bounds concurrent transfers; default 8.
	Sessions int
	// Checksum asks endpoints that can (extension "crc") for a checksum of each
	// transfer and compares it.
	Checksum bool
	// NoKeep switches kept sessions off: then each transfer's QP ends with it, and
	// with the QP what the server could do with a GET's rkey.
	NoKeep bool
	// KeepIdle is how long an unused kept session is held; default 30 s. The
	// server's promise shortens it.
	KeepIdle time.Duration

	Timeouts ClientTimeouts
	Logger   *slog.Logger
}

// ClientTimeouts are the allowances of one transfer.
type ClientTimeouts struct {
	Connect  time.Duration // TCP and TLS; default 10 s
	Transfer time.Duration // PREPARE to the data's completion, plus Rate; default 60 s
	Rate     int64         // bytes per second of the size-dependent part; default 100 MB/s
	Final    time.Duration // PUT: from the data's completion to FINAL; default 60 s
	Cancel   time.Duration // default 1 s
	Drain    time.Duration // QP to ERR until all work requests came back; default 5 s
}

func (t *ClientTimeouts) setDefaults() {
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{
		{&t.Connect, 10 * time.Second},
		{&t.Transfer, 60 * time.Second},
		{&t.Final, 60 * time.Second},
		{&t.Cancel, time.Second},
		{&t.Drain, 5 * time.Second},
	} {
		if *d.v <= 0 {
			*d.v = d.def
		}
	}
	if t.Rate <= 0 {
		t.Rate = 100 << 20
	}
}

// allowance of the part of a transfer that moves size bytes.
func (t *ClientTimeouts) allowance(size int64) time.Duration {
	return t.Transfer + time.Duration(float64(size)/float64(t.Rate)*float64(time.Second))
}

// Client moves bytes between one S3 endpoint and registered memory. All
// methods may be called concurrently.
type Client struct {
	o       ClientOptions
	log     *slog.Logger
	control *control
	ep      *endpoint
	slots   *slots
	counts  counters
	probes  singleflight.Group

	keptMu sync.Mutex
	idle   []*keptSession // most recently used last
	open   int            // sessions of all kinds, idle or in use
	kept   int            // kept ones of them
	closed bool
	ending sync.WaitGroup // idle sessions that are being ended
}

// NewClient makes a client; it does no I/O. Close it after the last transfer.
func NewClient(o ClientOptions) (*Client, error) {
	switch {
	case o.Endpoint == nil || o.Endpoint.Host == "":
		return nil, errors.New("rdma client: no endpoint")
	case o.Endpoint.Scheme != "http" && o.Endpoint.Scheme != "https":
		return nil, fmt.Errorf("rdma client: scheme %q of the endpoint is neither http nor https", o.Endpoint.Scheme)
	case o.Pool == nil:
		return nil, errors.New("rdma client: no queue pair pool")
	case o.Credentials == nil:
		return nil, errors.New("rdma client: no credentials")
	case o.GID.IsZero():
		return nil, errors.New("rdma client: no GID")
	}
	if o.Region == "" {
		o.Region = "us-east-1"
	}
	if o.Service == "" {
		o.Service = "s3"
	}
	if o.Port == 0 {
		o.Port = 1
	}
	if o.MTU == 0 {
		o.MTU = verbs.MTU4096
	}
	if o.MinSize <= 0 {
		o.MinSize = 64 << 10
	}
	if o.ChunkSize <= 0 {
		o.ChunkSize = 16 << 20
	}
	o.ChunkSize = min(o.ChunkSize, token.MaxSize)
	if o.MaxMsgSize > 0 {
		o.ChunkSize = min(o.ChunkSize, o.MaxMsgSize)
	}
	if o.Sessions <= 0 {
		o.Sessions = 8
	}
	if o.KeepIdle <= 0 {
		o.KeepIdle = 30 * time.Second
	}
	o.Timeouts.setDefaults()
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	log := o.Logger.With("endpoint", o.Endpoint.Host)
	ep := newEndpoint(log, entryOf(o.GIDs, o.GIDIndex, o.GID))
	ep.gids = o.GIDs
	return &Client{
		o:       o,
		log:     log,
		control: newControl(o, ep),
		ep:      ep,
		slots:   newSlots(o.Sessions),
	}, nil
}

// GetRequest is a range of an object to be fetched into Dst.
type GetRequest struct {
	Bucket, Key string
	Offset      int64
	Dst         verbs.Segment // its length is the number of bytes asked for
	// IfMatch is an ETag without quotes; needs the extension "cond". Otherwise the
	// caller compares the ETag of the result.
	IfMatch string
}

// GetResult of a good transfer.
type GetResult struct {
	N         int64  // bytes in Dst; fewer than asked for means that the object ends there
	ETag      string // without quotes; "" when the peer does not tell
	VersionID string // "" when not versioned
}

// Get fetches a range. When it returns, in success or error, the transfer's writes
// are over, unless an error wraps verbs.ErrUnsafe: a server that obeys the protocol
// touches Dst no more. One that does not still could while a session is kept (see
// NoKeep), as it has the rkey of the whole of Dst.MR until that is closed
// (doc/PROTOCOL.md, section 5.5). After an error the contents of Dst are undefined.
// Errors are *Error.
func (c *Client) Get(ctx context.Context, r GetRequest) (GetResult, error) {
	t := &transfer{
		op:     OpGet,
		target: token.Target{Bucket: r.Bucket, Key: r.Key},
		offset: r.Offset,
		seg:    r.Dst,
		extras: token.Extras{IfMatch: r.IfMatch},
		need:   needGet(r.Offset, int64(len(r.Dst.Buf)), r.IfMatch),
	}
	f, err := c.do(ctx, t)
	if err != nil {
		return GetResult{}, err
	}
	return GetResult{N: f.Bytes, ETag: f.ETag, VersionID: f.VersionID}, nil
}

// PutRequest stores Src as an object or, with UploadID, as a part.
type PutRequest struct {
	Bucket, Key string
	Src         verbs.Segment
	UploadID    string // needs the extension "mp"
	PartNumber  int    // 1…10000 with UploadID
	IfMatch     string // ETag without quotes; needs "cond"
	IfNoneMatch string // "*"; needs "cond"
	Meta        map[string]string
	ContentType string // with Meta: needs "meta"
}

// PutResult of a good transfer.
type PutResult struct {
	ETag      string // without quotes; "" when the peer does not tell
	VersionID string // "" when not versioned
}

// Put stores Src, which needs no remote rights: no peer is told its rkey. When Put
// returns, Src is read no more, unless the error wraps verbs.ErrUnsafe. Errors are
// *Error; ActionUnknown means that the object may have been stored.
func (c *Client) Put(ctx context.Context, r PutRequest) (PutResult, error) {
	t := &transfer{
		op:     OpPut,
		target: token.Target{Bucket: r.Bucket, Key: r.Key, UploadID: r.UploadID, PartNumber: r.PartNumber},
		seg:    r.Src,
		extras: token.Extras{IfMatch: r.IfMatch, IfNoneMatch: r.IfNoneMatch, Meta: r.Meta, ContentType: r.ContentType},
		need:   needPut(r),
	}
	f, err := c.do(ctx, t)
	if err != nil {
		return PutResult{}, err
	}
	return PutResult{ETag: f.ETag, VersionID: f.VersionID}, nil
}

// Close ends all kept sessions and waits for it. Transfers that are under way
// end by themselves; later ones fail with ErrClosed.
func (c *Client) Close() {
	c.keptMu.Lock()
	c.closed = true
	idle := c.idle
	c.idle = nil
	c.keptMu.Unlock()
	for _, s := range idle {
		s.expiry.Stop()
		c.ending.Go(func() { c.end(s) })
	}
	c.ending.Wait()
	c.control.client.CloseIdleConnections()
}

func (c *Client) isClosed() bool {
	c.keptMu.Lock()
	defer c.keptMu.Unlock()
	return c.closed
}
