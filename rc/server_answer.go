package rc

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"log/slog"
	"net/http"

	"s3rdmafs/token"
	"s3rdmafs/verbs"
)

// Answers of section 10.1.
var (
	errShuttingDown = &S3Error{http.StatusServiceUnavailable, "RdmaServiceUnavailable", "The server is shutting down."}
	errPortDown     = &S3Error{http.StatusServiceUnavailable, "RdmaServiceUnavailable", "The server's RDMA port is out of use."}
	errSlowDown     = &S3Error{http.StatusServiceUnavailable, "SlowDown", "Too many RDMA sessions, or no staging memory left."}
	errTooLarge     = &S3Error{http.StatusRequestEntityTooLarge, "EntityTooLarge", "The transfer is larger than one session can move."}
	errNoSession    = &S3Error{http.StatusNotFound, "NoSuchRdmaSession", "The session does not exist, or no longer."}
	errCookie       = &S3Error{http.StatusForbidden, "RdmaCookieMismatch", "The cookie is not that of the session."}
	errConflict     = &S3Error{http.StatusConflict, "RdmaSessionConflict", "The session cannot do this now."}
	errSequence     = &S3Error{http.StatusConflict, "RdmaSequenceConflict", "The sequence number is not the next one."}
	errTransfer     = &S3Error{http.StatusBadGateway, "RdmaTransferFailed", "The RDMA transfer failed."}
	errDataTimeout  = &S3Error{http.StatusRequestTimeout, "RequestTimeout", "The RDMA transfer did not end in time."}
	errUnknown      = &S3Error{http.StatusGatewayTimeout, "RdmaOutcomeUnknown", "Storing did not end in time; the object may have been stored."}
	errRange        = &S3Error{http.StatusRequestedRangeNotSatisfiable, "InvalidRange", "The range starts at or past the end of the object."}
)

func badRequest(reason string) error {
	return &S3Error{http.StatusBadRequest, "InvalidRdmaRequest", reason}
}

func notProtocol() error { return badRequest(token.HeaderProtocol + ": not " + token.Protocol) }

// answer makes the response of a success with headers h, or of err.
func (s *Server) answer(ctx context.Context, r Request, route string, h http.Header, err error) Response {
	if err != nil {
		s.count.refused.Add(1)
		return s.refusal(ctx, r, route, err)
	}
	h.Set(token.HeaderCapabilities, serverCapabilities.String())
	return Response{Status: http.StatusOK, Header: h}
}

func (s *Server) refusal(ctx context.Context, r Request, route string, err error) Response {
	h := make(http.Header)
	h.Set(token.HeaderProtocol, token.Protocol)
	h.Set(token.HeaderCapabilities, serverCapabilities.String())
	h.Set("Content-Type", "application/xml")
	var s3err *S3Error
	var syn *token.SyntaxError
	switch {
	case errors.Is(err, ErrUseHTTP):
		h.Set(token.HeaderProtocolStatus, token.StatusUnsupported)
		s3err = &S3Error{http.StatusNotImplemented, "NotImplemented", "This cannot be done by RDMA; use HTTP."}
	case errors.As(err, &s3err):
	case errors.Is(err, token.ErrMetaTooLarge):
		s3err = &S3Error{http.StatusBadRequest, "MetadataTooLarge", err.Error()}
	case errors.As(err, &syn):
		s3err = &S3Error{http.StatusBadRequest, "InvalidRdmaRequest", syn.Error()}
	case errors.Is(err, errNoStaging), errors.Is(err, verbs.ErrMemlock), errors.Is(err, verbs.ErrNoResource):
		s3err = errSlowDown
	default:
		s3err = &S3Error{http.StatusInternalServerError, "InternalError", "The server failed; its log says more."}
	}
	level := slog.LevelDebug
	if s3err.Status >= http.StatusInternalServerError && s3err.Status != http.StatusNotImplemented {
		level = slog.LevelWarn
	}
	s.log.Log(ctx, level, "rdma request refused", "route", route, "request", r.RequestID, "status", s3err.Status, "code", s3err.Code, "err", err)
	return Response{Status: s3err.Status, Header: h, Body: errorBody(s3err, r.RequestID)}
}

func errorBody(e *S3Error, requestID string) []byte {
	var b bytes.Buffer
	b.WriteString(xml.Header)
	body := struct {
		XMLName   xml.Name `xml:"Error"`
		Code      string
		Message   string
		RequestID string `xml:"RequestId"`
	}{Code: e.Code, Message: e.Message, RequestID: requestID}
	// Strings into a buffer: Encode has nothing to fail on.
	_ = xml.NewEncoder(&b).Encode(body)
	return b.Bytes()
}
