package sigv4_test

import (
	"net/http"
	"testing"

	"s3rdmafs/rc/rctest/sigv4"
)

// The PREPARE and READY of section 18.2.
func TestVectors(t *testing.T) {
	prepare := map[string]string{
		"X-Amz-Rdma-Token":  "014523010000000000000000000000ffffc000020a0000000000000000000000000000000000000000010000",
		"X-Amz-Rdma-Psn":    "0a1b2c",
		"X-Amz-Rdma-Cookie": "1a2b3c4d", "X-Amz-Rdma-Op": "GET", "X-Amz-Rdma-Target": "/bucket1/dir/my%20key.bin",
		"X-Amz-Rdma-Size": "65536", "X-Amz-Rdma-Offset": "0",
	}
	ready := map[string]string{
		"X-Amz-Rdma-Session": "00112233445566778899aabbccddeeff", "X-Amz-Rdma-Cookie": "1a2b3c4d",
		"X-Amz-Rdma-Qpn": "12345", "X-Amz-Rdma-Mr-Addr": "7f3a5c001000", "X-Amz-Rdma-Mr-Rkey": "1f2e3d",
	}
	const (
		prepareSigned = "host;x-amz-content-sha256;x-amz-date;x-amz-rdma-cookie;x-amz-rdma-offset;x-amz-rdma-op;x-amz-rdma-protocol;x-amz-rdma-psn;x-amz-rdma-size;x-amz-rdma-target;x-amz-rdma-token"
		readySigned   = "host;x-amz-content-sha256;x-amz-date;x-amz-rdma-cookie;x-amz-rdma-mr-addr;x-amz-rdma-mr-rkey;x-amz-rdma-protocol;x-amz-rdma-qpn;x-amz-rdma-session"
	)
	for _, c := range []struct {
		path, service, signed, want string
		headers                     map[string]string
	}{
		{"prepare", "s3", prepareSigned, "fe6cdda0afe086fa04fdb30d4faded9629335492c8896b023a7503392f405a30", prepare},
		{"prepare", "hipobj", prepareSigned, "45042969580bf51f38dca715283ee9f2753bd53354f0b5249c2f2b780f270488", prepare},
		{"ready", "s3", readySigned, "7c859da1f0c6779278ea30f63b23a4a0c1f40f261f701141f1d0c1964c6f431a", ready},
	} {
		r, err := http.NewRequest(http.MethodPost, "http://192.0.2.20:7070/.hipobj-rc/"+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Amz-Date", "20260102T030405Z")
		r.Header.Set("X-Amz-Content-Sha256", sigv4.EmptyHash)
		r.Header.Set("X-Amz-Rdma-Protocol", "hipobj-rc-v2")
		for name, value := range c.headers {
			r.Header.Set(name, value)
		}
		text := "AWS4-HMAC-SHA256 Credential=RCTESTACCESS0001/20260102/us-east-1/" + c.service + "/aws4_request, SignedHeaders=" + c.signed + ", Signature=" + c.want
		a, err := sigv4.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := a.Sum(r, sigv4.EmptyHash, "rc/test/secret/0001"); got != c.want {
			t.Errorf("%s %s: signature %s", c.path, c.service, got)
		}
		if a.String() != text {
			t.Errorf("written again: %s", a)
		}
	}
}
