package gateway

import (
	"context"
	"net/http"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/s3api"
	"github.com/versity/versitygw/s3api/utils"
	"github.com/versity/versitygw/s3err"

	"s3rdmafs/rc"
	"s3rdmafs/token"
)

// routes mounts the RC routes. Without RDMA they answer with the marker that
// sends clients to HTTP.
func (g *Gateway) routes() []s3api.Option {
	opts := []s3api.Option{s3api.WithMiddleware("/", refuseOlderHandshakes)}
	for path, handle := range map[string]func(*rc.Server, context.Context, rc.Request) rc.Response{
		token.PathPrepare: (*rc.Server).Prepare,
		token.PathReady:   (*rc.Server).Ready,
		token.PathCancel:  (*rc.Server).Cancel,
		token.PathNext:    (*rc.Server).Next,
	} {
		handler := unsupported
		if g.opts.RDMA != nil {
			handler = g.rcHandler(handle)
		}
		opts = append(opts, s3api.WithRoute(http.MethodPost, path, handler))
	}
	return opts
}

// rcHandler hands a request to the rc server. The request's own context ends
// as soon as the gateway begins to shut down, when transfers under way may
// still finish, and does not end when the client is gone. So one is made of the
// gateway's.
func (g *Gateway) rcHandler(handle func(*rc.Server, context.Context, rc.Request) rc.Response) fiber.Handler {
	return func(ctx fiber.Ctx) error {
		if n := ctx.Request().Header.ContentLength(); n > 0 || n == chunked || len(ctx.Request().URI().QueryString()) > 0 {
			return answer(ctx, http.StatusBadRequest, "InvalidRdmaRequest", "A control request has neither body nor query.")
		}
		h := make(http.Header)
		for k, v := range ctx.Request().Header.All() {
			h.Add(string(k), string(v))
		}
		requestID, _ := utils.EnsureRequestIDs(ctx)
		until, stop := untilHangup(g.base, ctx.RequestCtx().Conn())
		defer stop()
		resp := handle(g.rdma.server, ownContext(until), rc.Request{
			Header:       h,
			Authenticate: func() (rc.Principal, error) { return g.authenticate(ctx, h) },
			RequestID:    requestID,
		})
		for k, values := range resp.Header {
			for _, v := range values {
				ctx.Response().Header.Add(k, v)
			}
		}
		return ctx.Status(resp.Status).Send(resp.Body)
	}
}

// unsupported is the answer of RC routes where there is no RDMA (section 10.2).
func unsupported(ctx fiber.Ctx) error {
	ctx.Set(token.HeaderProtocolStatus, token.StatusUnsupported)
	return notImplemented(ctx, "This gateway has no RDMA device.")
}

// chunked is what fasthttp gives as the content length of a chunked body.
const chunked = -1

func notImplemented(ctx fiber.Ctx, message string) error {
	return answer(ctx, http.StatusNotImplemented, "NotImplemented", message)
}

// answer sends an S3 error. A request of the protocol sees by the echo that the
// answer is no proxy's.
func answer(ctx fiber.Ctx, status int, code, message string) error {
	if ctx.Get(token.HeaderProtocol) == token.Protocol {
		ctx.Set(token.HeaderProtocol, token.Protocol)
	}
	requestID, hostID := utils.EnsureRequestIDs(ctx)
	err := s3err.APIError{Code: code, Description: message, HTTPStatusCode: status}
	ctx.Response().Header.SetContentType(fiber.MIMEApplicationXML)
	return ctx.Status(status).Send(err.XMLBody(requestID, hostID))
}

// refuseOlderHandshakes answers S3 requests that ask for one of the RDMA
// protocols of sections 19.1 to 19.3. A GET may go on as an ordinary one where
// its client expects the data in the body if the server declines.
func refuseOlderHandshakes(ctx fiber.Ctx) error {
	header := ctx.Get(token.HeaderToken)
	if header == "" {
		return ctx.Next()
	}
	ctx.Set(token.HeaderReply, "501")
	bytesInHTTP := ctx.Method() != http.MethodPut || ctx.Request().Header.ContentLength() != 0
	if token.ShapeOf(header) != token.ShapeRC && bytesInHTTP {
		return ctx.Next()
	}
	ctx.Set(token.HeaderProtocolStatus, token.StatusUnsupported)
	return notImplemented(ctx, "This gateway does not speak the RDMA protocol of the request.")
}
