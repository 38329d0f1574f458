package gateway

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"

	"github.com/gofiber/fiber/v3"
	"github.com/valyala/fasthttp"
	"github.com/versity/versitygw/s3api/utils"
)

// answerUnreadable takes over what came in and is no request: a connection that
// broke, a TLS client on a port without TLS. versitygw would call each an internal
// error, on standard error. What else cannot be read is left to it.
func (g *Gateway) answerUnreadable() {
	srv := g.app.Server()
	others := srv.ErrorHandler
	srv.ErrorHandler = func(ctx *fasthttp.RequestCtx, err error) {
		// The error itself cites what was read, which may be a signature.
		why, known := "malformed", true
		var network net.Error
		switch {
		case errors.As(err, &network):
			why = network.Error()
		case strings.Contains(err.Error(), unknownMethod):
			why = "begins like no HTTP request; perhaps TLS"
		default:
			known = false
		}
		g.log.Debug("request cannot be read", slog.String("from", ctx.RemoteAddr().String()), slog.String("why", why))
		if known {
			ctx.Error("This is no HTTP request.", http.StatusBadRequest)
			return
		}
		others(ctx, err)
	}
}

// unknownMethod is in fasthttp's error for whatever begins like no request.
const unknownMethod = "unsupported http request method"

// logFailures logs each request that ended in an internal error, which the client
// is told nothing about. The query stays out of it: it may hold a signature.
func (g *Gateway) logFailures(ctx fiber.Ctx) error {
	err := ctx.Next()
	failed := ctx.Response().StatusCode() == http.StatusInternalServerError
	// The server sends requests that it cannot read through here, too, which find
	// no route.
	if !failed && (err == nil || errors.Is(err, fiber.ErrNotFound) || errors.Is(err, fiber.ErrMethodNotAllowed)) {
		return err
	}
	requestID, _ := utils.EnsureRequestIDs(ctx)
	attrs := []any{slog.String("method", ctx.Method()), slog.String("path", ctx.Path()), slog.String("request_id", requestID), slog.String("from", ctx.IP())}
	if err != nil {
		attrs = append(attrs, slog.Any("err", err))
	}
	g.log.Error("request failed", attrs...)
	return err
}
