package faultproxy

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Status answers with an S3 error; the server never sees the request. An empty code
// makes an answer without body.
func Status(status int, code string) Fault {
	return func(x *Exchange) { errorAnswer(x, status, code) }
}

// HTML answers as a web server that knows nothing of S3.
func HTML(status int) Fault {
	return func(x *Exchange) {
		x.W.Header().Set("Content-Type", "text/html")
		x.W.WriteHeader(status)
		io.WriteString(x.W, "<html><body>nothing here</body></html>")
	}
}

// ResetBefore resets the connection; the server never sees the request.
func ResetBefore() Fault { return func(x *Exchange) { x.Reset() } }

// ResetAfter lets the server do the request and resets the connection in place
// of the answer.
func ResetAfter() Fault {
	return func(x *Exchange) {
		if drain(x) {
			x.Reset()
		}
	}
}

// StatusAfter lets the server do the request and answers with an error.
func StatusAfter(status int, code string) Fault {
	return func(x *Exchange) {
		if drain(x) {
			errorAnswer(x, status, code)
		}
	}
}

// LateError answers 200 with an S3 error as body; the server never sees the request.
func LateError(code string) Fault { return Status(http.StatusOK, code) }

// Truncate ends the answer's body after n bytes and resets the connection.
func Truncate(n int64) Fault {
	return Change(func(resp *http.Response) {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(io.LimitReader(resp.Body, n), broken{}), resp.Body}
	})
}

// IgnoreRange makes a partial answer look like that of a server without ranges.
func IgnoreRange() Fault {
	return Change(func(resp *http.Response) {
		resp.StatusCode = http.StatusOK
		resp.Header.Del("Content-Range")
	})
}

// Header replaces a header of the answer; "" removes it.
func Header(name, value string) Fault {
	return Change(func(resp *http.Response) {
		if value == "" {
			resp.Header.Del(name)
			return
		}
		resp.Header.Set(name, value)
	})
}

// Change forwards the request and changes the answer.
func Change(f func(*http.Response)) Fault {
	return func(x *Exchange) {
		if resp := x.Forward(); resp != nil {
			f(resp)
			x.Reply(resp)
		}
	}
}

// BlackHole takes the request and never answers.
func BlackHole() Fault {
	return func(x *Exchange) {
		io.Copy(io.Discard, x.R.Body)
		<-x.R.Context().Done()
	}
}

// Stall sends n bytes of the answer's body and then no more, with the connection open.
func Stall(n int64) Fault {
	return func(x *Exchange) {
		resp := x.Forward()
		if resp == nil {
			return
		}
		defer resp.Body.Close()
		for k, v := range resp.Header {
			x.W.Header()[k] = v
		}
		x.W.WriteHeader(resp.StatusCode)
		io.CopyN(x.W, resp.Body, n)
		http.NewResponseController(x.W).Flush()
		<-x.R.Context().Done()
	}
}

// Slow passes the answer's body on in pieces of n bytes with a pause after each.
func Slow(n int64, pause time.Duration) Fault {
	return Change(func(resp *http.Response) {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{slow{resp.Body, n, pause}, resp.Body}
	})
}

type slow struct {
	r     io.Reader
	n     int64
	pause time.Duration
}

func (s slow) Read(p []byte) (int, error) {
	t := time.NewTimer(s.pause)
	<-t.C
	return s.r.Read(p[:min(int64(len(p)), s.n)])
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// drain lets the server do the request and throws the answer away.
func drain(x *Exchange) bool {
	resp := x.Forward()
	if resp == nil {
		return false
	}
	io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	return true
}

func errorAnswer(x *Exchange, status int, code string) {
	io.Copy(io.Discard, x.R.Body)
	body := ""
	if code != "" && x.R.Method != http.MethodHead {
		body = fmt.Sprintf(`<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>made by faultproxy</Message><Resource>%s</Resource></Error>`,
			code, strings.ReplaceAll(x.R.URL.EscapedPath(), "&", "&amp;"))
	}
	h := x.W.Header()
	h.Set("Content-Type", "application/xml")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	x.W.WriteHeader(status)
	io.WriteString(x.W, body)
}
