package doctor

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"time"

	"s3rdmafs/cache"
	"s3rdmafs/internal/stack"
	"s3rdmafs/store"
	"s3rdmafs/verbs"
	"s3rdmafs/verbs/provider"
)

const (
	checkRDMA = "rdma transfer"
	checkHTTP = "http transfer"

	// transferSize of the test object, bytes; transferMin is what may go by RDMA.
	transferSize = 1 << 20
	transferMin  = 64 << 10
	// transferTime bounds the transfers of one transport, removeTime the removal
	// of what they stored.
	transferTime = 30 * time.Second
	removeTime   = 15 * time.Second

	keyPrefix = ".s3rdmafs-doctor-"
)

// open opens a stack for transfers of its own; its cache holds nothing.
func (r *run) open(ctx context.Context, mode store.Mode) (*stack.Stack, error) {
	so := r.o.Store
	so.Timeout, so.RetryFor = 2*r.o.Timeout, 2*r.o.Timeout
	return stack.Open(ctx, stack.Options{Store: so, RDMA: mode, Device: r.o.Device, Path: r.o.Path, CacheSize: cache.MinSize, Logger: r.o.Logger})
}

// closeStack may not hide a failure; a healthy stack always closes.
func (r *run) closeStack(ctx context.Context, s *stack.Stack) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		r.add(Check{Group: groupBucket, Name: "close", Status: Fail, Fact: err.Error(), Remedy: "please report this"})
	}
}

// access asks for the bucket, or for the list of buckets.
func (r *run) access(ctx context.Context) {
	c := Check{Group: groupBucket, Name: "access", Status: Skip}
	switch {
	case !r.reachable:
		c.Fact = "the server cannot be asked"
		r.add(c)
		return
	case r.creds == nil:
		c.Fact = "no credentials to ask with"
		r.add(c)
		return
	}
	s, err := r.open(ctx, store.ModeOff)
	if err != nil {
		c.Status, c.Fact, c.Remedy = Fail, err.Error(), "check --endpoint and --cache-size"
		r.add(c)
		return
	}
	defer r.closeStack(ctx, s)
	start := time.Now()
	if err := s.Check(ctx, r.o.Bucket, r.o.Prefix); err != nil {
		c.Status, c.Fact, c.Remedy = Fail, err.Error(), accessRemedy(err, r.o.Bucket)
		r.creds = nil // no use to go on with
		r.add(c)
		return
	}
	c.Status = OK
	took := millis(time.Since(start))
	if r.o.Bucket == "" {
		c.Fact = fmt.Sprintf("the list of buckets may be asked for (%s); name a bucket to test transfers: s3rdmafs doctor s3://BUCKET", took)
	} else {
		c.Fact = fmt.Sprintf("s3://%s/%s can be listed (%s)", r.o.Bucket, r.o.Prefix, took)
	}
	r.add(c)
}

func accessRemedy(err error, bucket string) string {
	var e *store.Error
	switch {
	case errors.As(err, &e) && e.Code == "RequestTimeTooSkewed":
		return "set the clock, see above"
	case errors.As(err, &e) && e.Code == "AuthorizationHeaderMalformed":
		return "give the server's region with --region"
	// Stack.Check has words of its own for a bucket that is not there.
	case e == nil && bucket != "":
		return "check the name; buckets are made by the server's own tools (s3://BUCKET)"
	case errors.Is(err, store.ErrBadCredentials):
		return "the key or the secret is not what this server knows; check the source named under credentials"
	case errors.Is(err, store.ErrDenied):
		return "a policy must grant s3:ListBucket and s3:GetObject, for writing s3:PutObject and s3:DeleteObject"
	}
	return "look into the server's log"
}

// transfers moves a megabyte by each transport.
func (r *run) transfers(ctx context.Context) {
	skip := ""
	switch {
	case r.o.Bucket == "":
		skip = "no bucket given"
	case !r.reachable || r.creds == nil:
		skip = "the bucket cannot be used"
	}
	if skip != "" {
		r.add(Check{Group: groupBucket, Name: "transfers", Status: Skip, Fact: skip})
		return
	}
	r.transfer(ctx, checkHTTP, store.ModeOff)
	switch {
	case r.o.RDMA == store.ModeOff:
		skip = "RDMA is switched off"
	case len(r.rails) == 0:
		skip = "no device"
	case r.spoken == spokenNo:
		skip = "the server does not speak hipobj-rc-v2"
	}
	if skip != "" {
		r.add(Check{Group: groupBucket, Name: checkRDMA, Status: Skip, Fact: skip})
		return
	}
	r.transfer(ctx, checkRDMA, store.ModeRequire)
}

// transfer tests one transport. What it stores is removed again.
func (r *run) transfer(ctx context.Context, name string, mode store.Mode) {
	c := Check{Group: groupBucket, Name: name, Status: OK}
	bad := Fail
	if mode == store.ModeRequire && r.caps == 0 {
		bad = r.withoutRDMA() // nothing was promised
	}
	s, err := r.open(ctx, mode)
	if err != nil {
		c.Status, c.Fact, c.Remedy = bad, err.Error(), "see memlock and device above"
		if errors.Is(err, verbs.ErrMemlock) {
			c.Status = r.withoutRDMA()
		}
		r.add(c)
		return
	}
	defer r.closeStack(ctx, s)
	buf, err := s.NewBuffer(transferSize)
	if err != nil {
		c.Status, c.Fact, c.Remedy = bad, err.Error(), "see memlock above"
		r.add(c)
		return
	}
	tctx, cancel := context.WithTimeout(ctx, transferTime)
	defer cancel()
	c.Fact, err = r.move(tctx, s, buf.Segment())
	switch {
	case errors.Is(err, errNothing):
		c.Status, c.Fact = Skip, err.Error()
	case err != nil:
		c.Status, c.Fact = bad, err.Error()
		c.Remedy = r.transferRemedy(s, err, mode)
	case mode == store.ModeRequire:
		r.moved = true
	}
	r.add(c)
	if !errors.Is(err, verbs.ErrUnsafe) {
		if err := buf.Close(); err != nil {
			r.add(Check{Group: groupBucket, Name: "close", Status: Fail, Fact: err.Error(), Remedy: "please report this"})
		}
	}
}

var (
	errNothing = errors.New("read-only, and the first 1000 objects have none of 64 KiB or more")
	errBytes   = errors.New("the bytes that came back are not those that were stored")
)

// move does what the transfer check is about and tells the times.
func (r *run) move(ctx context.Context, s *stack.Stack, seg verbs.Segment) (string, error) {
	if r.o.ReadOnly {
		return r.readOnly(ctx, s, seg)
	}
	key, err := randomKey(r.o.Prefix)
	if err != nil {
		return "", err
	}
	want := make([]byte, transferSize)
	if _, err := rand.Read(want); err != nil {
		return "", err
	}
	seg = seg.Slice(0, transferSize)
	defer r.remove(ctx, s.Store, key)
	var puts, gets [2]time.Duration
	for i := range puts {
		copy(seg.Buf, want)
		start := time.Now()
		info, err := s.Store.Put(ctx, store.PutRequest{Bucket: r.o.Bucket, Key: key, Src: seg})
		if err != nil {
			return "", err
		}
		puts[i] = time.Since(start)
		clear(seg.Buf)
		start = time.Now()
		if _, err := s.Store.Read(ctx, store.ReadRequest{Bucket: r.o.Bucket, Key: key, ETag: info.ETag, Dst: seg, ObjectSize: transferSize}); err != nil {
			return "", err
		}
		gets[i] = time.Since(start)
		if !bytes.Equal(seg.Buf, want) {
			return "", errBytes
		}
	}
	return fmt.Sprintf("1 MiB: PUT %s, GET %s (first time %s, %s), same bytes",
		millis(puts[1]), millis(gets[1]), millis(puts[0]), millis(gets[0])), nil
}

// readOnly reads an object that is there, and compares with what HTTP says.
func (r *run) readOnly(ctx context.Context, s *stack.Stack, seg verbs.Segment) (string, error) {
	page, err := s.Store.List(ctx, store.ListRequest{Bucket: r.o.Bucket, Prefix: r.o.Prefix, Recursive: true})
	if err != nil {
		return "", err
	}
	for _, i := range page.Infos {
		if i.Size < transferMin {
			continue
		}
		n := int(min(i.Size, transferSize))
		plain := verbs.Segment{Buf: make([]byte, n)}
		h, err := r.open(ctx, store.ModeOff)
		if err != nil {
			return "", err
		}
		defer r.closeStack(ctx, h)
		req := store.ReadRequest{Bucket: i.Bucket, Key: i.Key, ETag: i.ETag, Dst: plain, ObjectSize: i.Size}
		if _, err := h.Store.Read(ctx, req); err != nil {
			return "", err
		}
		req.Dst = seg.Slice(0, n)
		start := time.Now()
		if _, err := s.Store.Read(ctx, req); err != nil {
			return "", err
		}
		took := time.Since(start)
		if !bytes.Equal(req.Dst.Buf, plain.Buf) {
			return "", fmt.Errorf("%w (%s)", errBytes, i.Key)
		}
		return fmt.Sprintf("%d KiB of %s: GET %s, same bytes; nothing written", n>>10, i.Key, millis(took)), nil
	}
	return "", errNothing
}

// remove deletes the test object whatever became of ctx. A PUT that was cut
// off may have stored it.
func (r *run) remove(ctx context.Context, s *store.Store, key string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
	defer cancel()
	if err := s.Delete(ctx, r.o.Bucket, key); err != nil {
		r.add(Check{Group: groupBucket, Name: "removal", Status: Fail,
			Fact: fmt.Sprintf("the test object s3://%s/%s may be left: %v", r.o.Bucket, key, err), Remedy: "delete it by hand; a policy must grant s3:DeleteObject"})
	}
}

func randomKey(prefix string) (string, error) {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", err
	}
	return prefix + keyPrefix + hex.EncodeToString(b[:]), nil
}

const softwareRemedy = "run the gateway and the mount as one user of this host, or use a real RDMA device; --rdma off makes HTTP the plan"

// transferRemedy names the completion status that came up, if one did.
func (r *run) transferRemedy(s *stack.Stack, err error, mode store.Mode) string {
	switch {
	case errors.Is(err, store.ErrDenied):
		return "a policy must grant s3:PutObject, s3:GetObject and s3:DeleteObject; --read-only stores nothing"
	case mode == store.ModeOff:
		return "look into the server's log"
	case errors.Is(err, verbs.ErrUnreachable) && r.uses(provider.Software):
		return softwareRemedy
	}
	if q := s.Stats().Queues; q != nil {
		for _, h := range StatusTable() {
			if q.CompletionErrors[h.Name] > 0 && h.Status != verbs.WCWRFlushErr {
				return fmt.Sprintf("%s: %s. Usual cause: %s. Check: %s (more: s3rdmafs doctor --wc-status %s)", h.Name, h.Meaning, h.Causes[0], h.Checks[0], h.Name)
			}
		}
	}
	var e *store.Error
	if errors.As(err, &e) && e.Status == http.StatusNotImplemented {
		return serverRemedy
	}
	return "both ends need the same path MTU, address family and RoCE version, UDP port 4791 open, and RDMA on at the server; its log tells the other half"
}
