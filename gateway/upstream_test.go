package gateway

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// A service that accepts requests and says nothing does not hold them for ever.
func TestSilentServiceFailsRequests(t *testing.T) {
	release := make(chan struct{})
	ended := make(chan struct{}, 2)
	silent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/half") {
			w.Header().Set("Content-Length", "1000")
			w.Write(make([]byte, 500))
			w.(http.Flusher).Flush()
		}
		select {
		case <-release:
		case <-r.Context().Done():
			ended <- struct{}{}
		}
	}))
	defer silent.Close()
	defer close(release)
	limits := upstreamTimes{connect: time.Minute, answer: 50 * time.Millisecond, stall: 50 * time.Millisecond}
	be, err := openUpstream(t.Context(), Upstream{Endpoint: silent.URL, Region: "us-east-1", AccessKey: "a", SecretKey: "s"}, limits)
	if err != nil {
		t.Fatal(err)
	}
	get := func(ctx context.Context, key string) error {
		bucket := "bucket"
		out, err := be.GetObject(ctx, &s3.GetObjectInput{Bucket: &bucket, Key: &key})
		if err != nil {
			return err
		}
		defer out.Body.Close()
		_, err = io.ReadAll(out.Body)
		return err
	}
	within(t, "no answer", func() error { return get(t.Context(), "none") })
	<-ended
	err = within(t, "half an answer", func() error { return get(t.Context(), "half") })
	if cause := (stalledError{}); !errors.As(err, &cause) {
		t.Errorf("half an answer: %v does not tell of the stall", err)
	}
	<-ended
}

// within wants an error before the test's patience ends.
func within(t *testing.T, what string, op func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- op() }()
	select {
	case err := <-done:
		if err == nil {
			t.Errorf("%s: no error", what)
		}
		return err
	case <-time.After(20 * time.Second):
		t.Fatalf("%s: still waiting", what)
		return nil
	}
}

// The end of a context of ours ends the request; that of the server's own request,
// which is used again, is not looked at.
func TestUpstreamContexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base, end := context.WithCancel(t.Context())
		defer end()
		for _, own := range []bool{true, false} {
			c, service := pipedClient(base, time.Hour)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if own {
				ctx = ownContext(ctx)
			}
			done := make(chan error, 1)
			go func() { done <- do(ctx, c, nil) }()
			if _, err := http.ReadRequest(bufio.NewReader(service)); err != nil {
				t.Fatal(err)
			}
			cancel()
			synctest.Wait()
			select {
			case err := <-done:
				if !own || !errors.Is(err, context.Canceled) {
					t.Errorf("own context %v: ended with %v", own, err)
				}
				continue
			default:
				if own {
					t.Error("the request goes on without its client")
				}
			}
			end()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("at the gateway's end: %v", err)
			}
		}
	})
}

// Only the service's time counts: not that of a client that sends its body slowly,
// or takes its time over the answer's.
func TestStallIsTheServices(t *testing.T) {
	const limit = time.Minute
	tests := map[string]struct {
		client, service time.Duration // between pieces of 100 bytes
		stalled         bool
	}{
		"both at once":          {0, 0, false},
		"slow client":           {2 * limit, 0, false},
		"slow service":          {0, limit / 2, false},
		"service that is stuck": {0, 2 * limit, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, service := pipedClient(t.Context(), limit)
				done := make(chan error, 1)
				go func() { done <- do(t.Context(), c, &slowReader{wait: tt.client, left: 10}) }()
				served := make(chan struct{})
				go func() {
					defer close(served)
					defer service.Close()
					r, err := http.ReadRequest(bufio.NewReaderSize(service, 16))
					if err != nil {
						t.Error(err)
						return
					}
					if _, err := io.Copy(io.Discard, &slowReader{wait: tt.service, left: 10, from: r.Body}); err != nil {
						return
					}
					io.WriteString(service, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
					for range 10 {
						time.Sleep(tt.service)
						if _, err := service.Write(make([]byte, 100)); err != nil {
							return
						}
					}
				}()
				err := <-done
				var cause stalledError
				if errors.As(err, &cause) != tt.stalled || !tt.stalled && err != nil {
					t.Errorf("ended with %v", err)
				}
				<-served
			})
		})
	}
}

// slowReader gives pieces of 100 bytes, its own or those of from.
type slowReader struct {
	wait time.Duration
	left int
	from io.Reader
}

func (r *slowReader) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	r.left--
	time.Sleep(r.wait)
	n := min(100, len(p))
	if r.from != nil {
		return io.ReadFull(r.from, p[:n])
	}
	return n, nil
}

// pipedClient is a client with one connection, of which the other end is the service's.
func pipedClient(ctx context.Context, stall time.Duration) (c *upstreamClient, service net.Conn) {
	near, far := net.Pipe()
	return &upstreamClient{ctx: ctx, stall: stall, client: http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		WriteBufferSize:   16,
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return near, nil },
	}}}, far
}

// do sends a PUT of 1000 bytes, or a GET without body, and reads the answer as
// slowly as the body was.
func do(ctx context.Context, c *upstreamClient, body *slowReader) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://service/", nil)
	if err != nil {
		return err
	}
	var wait time.Duration
	if body != nil {
		r.Method, r.Body, r.ContentLength = http.MethodPut, io.NopCloser(body), 1000
		wait = body.wait
	}
	resp, err := c.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, &slowReader{wait: wait, left: 10, from: resp.Body})
	return err
}
