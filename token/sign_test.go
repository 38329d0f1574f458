package token

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"
)

var vectorTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// derive signs the hash of a canonical request as SigV4 defines it, so that a
// vector's request hash is checked through its signature.
func derive(service, requestHash string) string {
	mac := func(key []byte, s string) []byte {
		m := hmac.New(sha256.New, key)
		m.Write([]byte(s))
		return m.Sum(nil)
	}
	key := mac([]byte("AWS4rc/test/secret/0001"), "20260102")
	for _, part := range []string{"us-east-1", service, "aws4_request"} {
		key = mac(key, part)
	}
	scope := "20260102/us-east-1/" + service + "/aws4_request"
	return hex.EncodeToString(mac(key, strings.Join([]string{"AWS4-HMAC-SHA256", "20260102T030405Z", scope, requestHash}, "\n")))
}

func TestSignVectors(t *testing.T) {
	cookie := uint32(0x1a2b3c4d)
	prepare := PrepareRequest{
		Token: mustParse(t, t1), PSN: 0x0a1b2c, Cookie: cookie, Op: OpGet,
		Target: Target{Bucket: "bucket1", Key: "dir/my key.bin"}, Size: 65536,
	}.Header()
	const session = "00112233445566778899aabbccddeeff"
	ready := ReadyRequest{Session: session, Cookie: cookie, QPN: 0x12345, MRAddr: 0x7f3a5c001000, MRRKey: 0x1f2e3d}.Header()
	cancel := CancelRequest{Session: session, Cookie: cookie}.Header()
	for _, v := range []struct {
		name, path, service, signature, hash string
		header                               http.Header
	}{
		{"prepare", PathPrepare, "s3", "fe6cdda0afe086fa04fdb30d4faded9629335492c8896b023a7503392f405a30", "a217e4cc2146fc12be69e56e3e8fb71bc9d59faa1d5fd9f93a1d1ed728f6594b", prepare},
		{"prepare hipobj", PathPrepare, "hipobj", "45042969580bf51f38dca715283ee9f2753bd53354f0b5249c2f2b780f270488", "a217e4cc2146fc12be69e56e3e8fb71bc9d59faa1d5fd9f93a1d1ed728f6594b", prepare},
		{"ready", PathReady, "s3", "7c859da1f0c6779278ea30f63b23a4a0c1f40f261f701141f1d0c1964c6f431a", "ba967649c2f956a059a5fbc65d7ef992b62ff299b817a0bcc7771dd4b028074e", ready},
		{"cancel", PathCancel, "s3", "970b4e8f7e6407dde16d5e7ccafb0b9bab4e2ba570c5e1b2ab78c5814aa0e95f", "09c8f6a3381e759d56153f90279f3013bccf428154fa38f2753e3cbbc727f5b9", cancel},
	} {
		t.Run(v.name, func(t *testing.T) {
			r, err := http.NewRequest(http.MethodPost, "http://192.0.2.20:7070"+v.path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			maps.Copy(r.Header, v.header)
			if err := Sign(r, Credentials{AccessKey: "RCTESTACCESS0001", SecretKey: "rc/test/secret/0001"}, "us-east-1", v.service, vectorTime); err != nil {
				t.Fatal(err)
			}
			_, got, _ := strings.Cut(r.Header.Get("Authorization"), "Signature=")
			if got != v.signature {
				t.Errorf("signature %s, want %s\n%s", got, v.signature, r.Header.Get("Authorization"))
			}
			if want := derive(v.service, v.hash); got != want {
				t.Errorf("request hash of the vector gives signature %s, got %s", want, got)
			}
		})
	}
}

func TestSignCoversEveryHeader(t *testing.T) {
	r, err := http.NewRequest(http.MethodPost, "http://192.0.2.20:7070"+PathPrepare, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(r.Header, PrepareRequest{
		Token: mustParse(t, t1), PSN: 1, Cookie: 1, Op: OpPut, Target: Target{Bucket: "b", Key: "k"}, Size: 1,
		Extras: Extras{IfMatch: "e", ContentType: "text/plain", Meta: map[string]string{"a": "b"}, ChecksumAlgorithm: AlgorithmCRC64NVME},
	}.Header())
	if err := Sign(r, Credentials{AccessKey: "a", SecretKey: "b", SessionToken: "c"}, "us-east-1", "s3", vectorTime); err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(r.Header.Get("Authorization"), "SignedHeaders=")
	list, _, _ = strings.Cut(list, ",")
	signed := strings.Split(list, ";")
	want := map[string]bool{"host": true}
	for name := range r.Header {
		if name != "Authorization" {
			want[strings.ToLower(name)] = true
		}
	}
	for _, name := range signed {
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("not signed: %v", want)
	}
}

func TestSignFollowsARotatedSecret(t *testing.T) {
	signature := func(secret string) string {
		r, err := http.NewRequest(http.MethodPost, "http://192.0.2.20:7070"+PathReady, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if err := Sign(r, Credentials{AccessKey: "same", SecretKey: secret}, "us-east-1", "s3", vectorTime); err != nil {
			t.Fatal(err)
		}
		return r.Header.Get("Authorization")
	}
	old := signature("old")
	if signature("new") == old {
		t.Error("a new secret of the same access key gives the old signature")
	}
	if signature("old") != old {
		t.Error("the signature is not a function of its input")
	}
}
