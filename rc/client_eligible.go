package rc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"s3rdmafs/token"
)

// maxOffset is the first byte that endpoints without the extension "big" refuse
// (section 11.1).
const maxOffset = 1<<31 - 1

func needGet(off, n int64, ifMatch string) token.Capabilities {
	var need token.Capabilities
	if off+n > maxOffset {
		need |= token.CapBig
	}
	if ifMatch != "" {
		need |= token.CapCond
	}
	return need
}

func needPut(r PutRequest) token.Capabilities {
	var need token.Capabilities
	if r.UploadID != "" || r.PartNumber != 0 {
		need |= token.CapMP
	}
	if r.IfMatch != "" || r.IfNoneMatch != "" {
		need |= token.CapCond
	}
	if len(r.Meta) > 0 || r.ContentType != "" {
		need |= token.CapMeta
	}
	return need
}

// EligibleGet tells whether a GET of n bytes from off can go by RDMA at present
// (section 17.2); reason says why not. The range must lie inside the object.
func (c *Client) EligibleGet(off, n int64) (ok bool, reason string) {
	return c.eligible(OpGet, n, needGet(off, n, ""))
}

// EligiblePut tells whether a PUT can go by RDMA at present. While it is not
// known which extensions the endpoint has, the answer is yes and Put finds out.
func (c *Client) EligiblePut(r PutRequest) (ok bool, reason string) {
	if reason := checkPut(r); reason != "" {
		return false, reason
	}
	return c.eligible(OpPut, int64(len(r.Src.Buf)), needPut(r))
}

// MaxTransfer is the largest transfer in bytes that the endpoint is known to
// take: the chunk size, or less after it refused one as too large.
func (c *Client) MaxTransfer(op Op) int64 {
	return c.ep.maxSize(op, c.o.ChunkSize)
}

func (c *Client) eligible(op Op, n int64, need token.Capabilities) (bool, string) {
	if c.isClosed() {
		return false, "client closed"
	}
	if reason := c.checkSize(op, n); reason != "" {
		return false, reason
	}
	if ok, reason := c.ep.usable(); !ok {
		return false, reason
	}
	if have, known := c.ep.capabilities(); known && !have.Has(need) {
		return false, lacking(need, have)
	}
	return true, ""
}

func (c *Client) checkSize(op Op, n int64) string {
	switch {
	case n < c.o.MinSize:
		return "smaller than the RDMA minimum"
	case n > c.MaxTransfer(op):
		return "larger than one transfer"
	}
	return ""
}

func lacking(need, have token.Capabilities) string {
	return "endpoint lacks extension " + (need &^ have).String()
}

// checkPut returns why a PUT cannot be expressed in the protocol.
func checkPut(r PutRequest) string {
	part := r.UploadID != "" || r.PartNumber != 0
	switch {
	case part && (r.UploadID == "" || r.PartNumber < 1 || r.PartNumber > token.MaxParts):
		return "incomplete part"
	case part && (r.IfMatch != "" || r.IfNoneMatch != "" || len(r.Meta) > 0 || r.ContentType != ""):
		return "part with conditions or metadata"
	case r.IfMatch != "" && r.IfNoneMatch != "":
		return "two conditions"
	case r.IfNoneMatch != "" && r.IfNoneMatch != "*":
		return "condition other than If-None-Match: *"
	case len(r.ContentType) > 255 || !printable(r.ContentType):
		return "content type not representable"
	}
	if len(r.Meta) > 0 {
		s := token.FormatMeta(r.Meta)
		if _, err := token.ParseMeta(s); err != nil || len(s) > 4096 {
			return "metadata not representable"
		}
	}
	return ""
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return false
		}
	}
	return true
}

// probeTime bounds a probe.
const probeTime = 10 * time.Second

// Probe asks the endpoint for its extensions by a PREPARE with a protocol value
// that no server knows, which has no side effects (section 17.1). Get and Put do
// so by themselves when a request needs an extension and nothing is known yet.
func (c *Client) Probe(ctx context.Context) error {
	// Shared by all who wait for it, so one that gives up must not end it.
	done := c.probes.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTime)
		defer cancel()
		return nil, c.probe(ctx)
	})
	select {
	case r := <-done:
		return r.Err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *Client) probe(ctx context.Context) error {
	creds, err := c.o.Credentials(ctx)
	if err != nil {
		return fmt.Errorf("credentials: %w", err)
	}
	h := http.Header{token.HeaderProtocol: {"hipobj-rc-probe"}}
	a, _, err := c.control.prepare(ctx, creds, h)
	if err != nil {
		c.ep.refuse(outageTime, "no answer to a probe: "+err.Error())
		return err
	}
	switch {
	case a.status == http.StatusNotImplemented && token.IsMarker(a.header), a.code == "InvalidRdmaRequest":
		c.ep.capsAre(token.CapabilitiesOf(a.header))
	case strangerStatus(a.status):
		c.ep.confirmStranger(strangerReason(a.status, a.code))
	case a.status >= 500:
		c.ep.refuse(outageTime, fmt.Sprintf("status %d %s to a probe", a.status, a.code))
	}
	return nil
}

// HTTPSucceeded tells the client that the request whose transfer failed with err
// was done by HTTP. An endpoint that never spoke the protocol and refused
// PREPARE as any S3 server would is then left alone for a while (section 17.3).
func (c *Client) HTTPSucceeded(err error) {
	var e *Error
	if errors.As(err, &e) && e.Phase == PhasePrepare && strangerStatus(e.Status) {
		c.ep.confirmStranger(strangerReason(e.Status, e.Code))
	}
}

func strangerStatus(status int) bool {
	return status == 400 || status == 404 || status == 405 || status == 501 || (status >= 300 && status < 400)
}

func strangerReason(status int, code string) string {
	return fmt.Sprintf("the endpoint does not speak hipobj-rc-v2 (status %d %s)", status, code)
}
