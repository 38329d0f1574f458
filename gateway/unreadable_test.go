package gateway_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"s3rdmafs/internal/testenv"
)

// What is no request, as from a TLS client, is told so; it is no internal error.
func TestRequestsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	e := testenv.Start(t, testenv.Options{})
	for _, begin := range []string{"\x16\x03\x01 / HTTP/1.1\r\nHost: h\r\n\r\n", "GET / HTTP/1.1\r\nContent-Length: -\r\n\r\n"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(e.Endpoint, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, begin); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("answer to %q: %s", begin, resp.Status)
		}
	}
}
