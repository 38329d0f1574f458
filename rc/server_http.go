package rc

import (
	"context"
	"crypto/rand"
	"net/http"
	"strconv"

	"s3rdmafs/token"
)

// Handler serves the control paths by net/http; auth is Request.Authenticate for
// one request. Other paths are answered with 405.
func (s *Server) Handler(auth func(*http.Request) (Principal, error)) http.Handler {
	routes := map[string]func(context.Context, Request) Response{
		token.PathPrepare: s.Prepare,
		token.PathReady:   s.Ready,
		token.PathCancel:  s.Cancel,
		token.PathNext:    s.Next,
	}
	return http.HandlerFunc(func(w http.ResponseWriter, hr *http.Request) {
		r := Request{
			Header:       hr.Header,
			Authenticate: func() (Principal, error) { return auth(hr) },
			RequestID:    rand.Text(),
		}
		route := routes[hr.URL.EscapedPath()]
		var resp Response
		switch {
		case route == nil || hr.Method != http.MethodPost:
			resp = s.answer(hr.Context(), r, "unknown", nil, &S3Error{http.StatusMethodNotAllowed, "MethodNotAllowed", "Not a control path, or not POST."})
		case hr.ContentLength != 0 || hr.URL.RawQuery != "":
			resp = s.answer(hr.Context(), r, "unknown", nil, badRequest("a control request has neither body nor query"))
		default:
			resp = route(hr.Context(), r)
		}
		for name, values := range resp.Header {
			w.Header()[name] = values
		}
		w.Header().Set("X-Amz-Request-Id", r.RequestID)
		w.Header().Set("Content-Length", strconv.Itoa(len(resp.Body)))
		w.WriteHeader(resp.Status)
		// The client may be gone; it has a deadline of its own.
		_, _ = w.Write(resp.Body)
	})
}
