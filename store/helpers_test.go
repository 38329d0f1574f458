package store

import (
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/minio/minio-go/v7"

	"s3rdmafs/internal/faultproxy"
)

// rangeOf repeats the range of a request to another client.
func rangeOf(header string) minio.GetObjectOptions {
	var o minio.GetObjectOptions
	if header != "" {
		o.Set("Range", header)
	}
	return o
}

// reply answers a GET as a server whose object has another ETag.
func reply(x *faultproxy.Exchange, body io.Reader, etag string, size int64) {
	h := x.W.Header()
	h.Set("Etag", `"`+etag+`"`)
	h.Set("Last-Modified", time.Now().UTC().Format("Mon, 02 Jan 2006 15:04:05 GMT"))
	status := 200
	var first, last int64
	if _, err := fmt.Sscanf(x.R.Header.Get("Range"), "bytes=%d-%d", &first, &last); err == nil {
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, size))
		status, size = 206, last-first+1
	}
	h.Set("Content-Length", fmt.Sprint(size))
	x.W.WriteHeader(status)
	io.Copy(x.W, body)
}

func withQuery(name, value string) func(*http.Request) bool {
	return func(r *http.Request) bool { return r.URL.Query().Get(name) == value }
}

func isCopy(r *http.Request) bool { return r.Header.Get("X-Amz-Copy-Source") != "" }
