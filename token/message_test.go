package token

import (
	"bufio"
	"errors"
	"maps"
	"math"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const vectorSession = "00112233445566778899aabbccddeeff"

// header reads "Name: value" lines; the rest is ignored, so that a fuzzer may
// write anything.
func header(s string) http.Header {
	h := make(http.Header)
	lines := bufio.NewScanner(strings.NewReader(s))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), ": "); ok {
			h.Add(name, value)
		}
	}
	return h
}

func lines(h http.Header) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(h)) {
		for _, v := range h[name] {
			b.WriteString(name + ": " + v + "\n")
		}
	}
	return b.String()
}

const (
	vectorPrepare = "X-Amz-Rdma-Protocol: hipobj-rc-v2\nX-Amz-Rdma-Token: " + t1 + "\nX-Amz-Rdma-Psn: 0a1b2c\nX-Amz-Rdma-Cookie: 1a2b3c4d\n" +
		"X-Amz-Rdma-Op: GET\nX-Amz-Rdma-Target: /bucket1/dir/my%20key.bin\nX-Amz-Rdma-Size: 65536\nX-Amz-Rdma-Offset: 0\n"
	vectorPrepareReply = "X-Amz-Rdma-Protocol: hipobj-rc-v2\n" +
		"X-Amz-Rdma-Reply: 200:01efcdab0000000000000000000000ffffc00002140000000000000000000000000000000000000000010000\n" +
		"X-Amz-Rdma-Session: " + vectorSession + "\nX-Amz-Rdma-Psn: 00BEEF\nX-Amz-Rdma-Qpn: abcdef\n"
	vectorReady = "X-Amz-Rdma-Protocol: hipobj-rc-v2\nX-Amz-Rdma-Session: " + vectorSession + "\nX-Amz-Rdma-Cookie: 1a2b3c4d\n" +
		"X-Amz-Rdma-Qpn: 12345\nX-Amz-Rdma-Mr-Addr: 7f3a5c001000\nX-Amz-Rdma-Mr-Rkey: 1f2e3d\n"
	vectorFinal = "X-Amz-Rdma-Protocol: hipobj-rc-v2\nX-Amz-Rdma-Cookie: 1A2B3C4D\nX-Amz-Rdma-Bytes-Transferred: 65536\n" +
		"X-Amz-Rdma-Etag: \"5d41402abc4b2a76b9719d911017c592\"\n"
	vectorNext = "X-Amz-Rdma-Protocol: hipobj-rc-v2\nX-Amz-Rdma-Session: " + vectorSession + "\nX-Amz-Rdma-Seq: 1\nX-Amz-Rdma-Cookie: 1a2b3c4d\n" +
		"X-Amz-Rdma-Op: PUT\nX-Amz-Rdma-Target: /b/k\nX-Amz-Rdma-Size: 1048576\nX-Amz-Rdma-Offset: 0\nX-Amz-Rdma-Mr-Addr: 0\nX-Amz-Rdma-Mr-Rkey: 0\n"
)

func TestMessageVectors(t *testing.T) {
	prepare, err := ParsePrepareRequest(header(vectorPrepare))
	want := PrepareRequest{Token: mustParse(t, t1), PSN: 0x0a1b2c, Cookie: 0x1a2b3c4d, Op: OpGet, Target: Target{Bucket: "bucket1", Key: "dir/my key.bin"}, Size: 65536}
	if err != nil || !reflect.DeepEqual(prepare, want) {
		t.Errorf("PREPARE: %+v, %v", prepare, err)
	}
	reply, err := ParsePrepareResponse(header(vectorPrepareReply), OpGet)
	wantReply := PrepareResponse{
		Token:   Token{Transport: 1, QPNum: 0xabcdef, GID: gid("::ffff:192.0.2.20"), Port: 1},
		Session: vectorSession, PSN: 0xbeef, QPN: 0xabcdef,
	}
	if err != nil || reply != wantReply {
		t.Errorf("answer to PREPARE: %+v, %v", reply, err)
	}
	ready, err := ParseReadyRequest(header(vectorReady))
	wantReady := ReadyRequest{Session: vectorSession, Cookie: 0x1a2b3c4d, QPN: 0x12345, MRAddr: 0x7f3a5c001000, MRRKey: 0x1f2e3d}
	if err != nil || ready != wantReady {
		t.Errorf("READY: %+v, %v", ready, err)
	}
	final, err := ParseFinal(header(vectorFinal))
	wantFinal := Final{Cookie: 0x1a2b3c4d, Bytes: 65536, ETag: "5d41402abc4b2a76b9719d911017c592"}
	if err != nil || final != wantFinal {
		t.Errorf("FINAL: %+v, %v", final, err)
	}
	for _, v := range []struct{ got, want string }{
		{lines(want.Header()), lines(header(vectorPrepare))},
		{lines(wantReady.Header()), lines(header(vectorReady))},
		{strings.ToLower(lines(wantReply.Header())), strings.ToLower(lines(header(vectorPrepareReply)))},
		{strings.ToLower(lines(wantFinal.Header())), strings.ToLower(lines(header(vectorFinal)))},
	} {
		if v.got != v.want {
			t.Errorf("encoded\n%s\nwant\n%s", v.got, v.want)
		}
	}
}

// Section 18.3.
func TestPutVectors(t *testing.T) {
	h := header(vectorPrepareReply)
	h.Set(HeaderReply, "200:"+t2)
	h.Set(HeaderMRAddr, "7f3a5c001000")
	h.Set(HeaderMRRKey, "1a2b3c4d")
	r, err := ParsePrepareResponse(h, OpPut)
	if err != nil || r.MRAddr != 0x7f3a5c001000 || r.MRRKey != 0x1a2b3c4d {
		t.Errorf("%+v, %v", r, err)
	}
	if h := (ReadyRequest{Session: vectorSession, Cookie: 1, QPN: 1}).Header(); h.Get(HeaderMRAddr) != "0" || h.Get(HeaderMRRKey) != "0" {
		t.Errorf("READY of a PUT: %v", h)
	}
}

// edit is a change to a good message: a value, or nothing to delete the header.
type edit struct{ name, value string }

func (e edit) apply(h http.Header) http.Header {
	if e.value == "" {
		h.Del(e.name)
	} else {
		h.Set(e.name, e.value)
	}
	return h
}

func TestPrepareRequestLeniency(t *testing.T) {
	for _, e := range []edit{
		{HeaderOffset, ""}, {HeaderOp, "get"}, {HeaderPSN, "1"}, {HeaderCookie, "F"}, {HeaderToken, t4},
		{HeaderToken, t1 + ":00007f3a5c001000:0000000000100000"}, {HeaderToken, strings.ToUpper(t1)}, {HeaderSize, "00000000000000065536"},
		{HeaderQPN, "garbage"}, {HeaderSize, " 1\t"}, {HeaderSize, "18446744073709551615"}, {HeaderChecksumAlgorithm, "CRC32C"},
		{HeaderKeep, "1"}, {HeaderIfMatch, `"abc"`}, {HeaderIfMatch, "*"},
	} {
		if _, err := ParsePrepareRequest(e.apply(header(vectorPrepare))); err != nil {
			t.Errorf("%+v: %v", e, err)
		}
	}
	r, err := ParsePrepareRequest(edit{HeaderSize, "18446744073709551615"}.apply(header(vectorPrepare)))
	if err != nil || r.Size != math.MaxInt64 {
		t.Errorf("huge size: %d, %v", r.Size, err)
	}
}

func TestPrepareRequestRejected(t *testing.T) {
	get := []edit{
		{HeaderToken, ""}, {HeaderToken, t5}, {HeaderToken, t1 + ":"}, {HeaderPSN, ""}, {HeaderPSN, "0"}, {HeaderPSN, "1000000"},
		{HeaderCookie, ""}, {HeaderCookie, "0"}, {HeaderOp, ""}, {HeaderOp, "HEAD"}, {HeaderTarget, ""}, {HeaderTarget, "/b"},
		{HeaderSize, ""}, {HeaderSize, "0"}, {HeaderSize, "-1"}, {HeaderSize, "18446744073709551616"}, {HeaderOffset, "x"}, {HeaderOffset, "-1"},
		{HeaderKeep, "2"}, {HeaderIfMatch, "abc"}, {HeaderIfMatch, `"a", "b"`}, {HeaderIfMatch, `W/"a"`}, {HeaderIfNoneMatch, "*"},
		{HeaderContentType, "text/plain"}, {HeaderMeta, "a=b"}, {HeaderChecksumAlgorithm, strings.Repeat("x", 33)},
	}
	for _, e := range get {
		checkRejected(t, e, e.apply(header(vectorPrepare)))
	}
	for _, e := range []edit{
		{HeaderOffset, "1"}, {HeaderIfNoneMatch, `"a"`}, {HeaderContentType, "a\x01"}, {HeaderContentType, strings.Repeat("x", 256)}, {HeaderMeta, "A=b"},
	} {
		h := header(vectorPrepare)
		h.Set(HeaderOp, "PUT")
		checkRejected(t, e, e.apply(h))
	}
	for _, e := range []edit{{HeaderIfMatch, `"a"`}, {HeaderIfNoneMatch, "*"}, {HeaderContentType, "text/plain"}, {HeaderMeta, "a=b"}} {
		h := header(vectorPrepare)
		h.Set(HeaderOp, "PUT")
		h.Set(HeaderTarget, "/b/k?partNumber=1&uploadId=x")
		checkRejected(t, e, e.apply(h))
	}
	for _, e := range []edit{{HeaderToken, t4}, {HeaderOffset, "1"}, {HeaderIfMatch, `"a"`}, {HeaderChecksumAlgorithm, "CRC64NVME"}} {
		h := header(vectorPrepare)
		h.Set(HeaderKeep, "1")
		checkRejected(t, e, e.apply(h))
	}
	h := header(vectorPrepare)
	h.Add(HeaderSize, "1")
	checkRejected(t, edit{HeaderSize, "twice"}, h)
	h = header(vectorPrepare)
	h.Set(HeaderOp, "PUT")
	h.Set(HeaderIfMatch, `"a"`)
	h.Set(HeaderIfNoneMatch, "*")
	checkRejected(t, edit{HeaderIfNoneMatch, "with If-Match"}, h)
}

func checkRejected(t *testing.T, e edit, h http.Header) {
	t.Helper()
	var syn *SyntaxError
	if r, err := ParsePrepareRequest(h); !errors.As(err, &syn) {
		t.Errorf("%+v accepted: %+v, %v", e, r, err)
	}
}

func TestPrepareResponseStrictness(t *testing.T) {
	put := func() http.Header {
		h := header(vectorPrepareReply)
		h.Set(HeaderMRAddr, "7f3a5c001000")
		h.Set(HeaderMRRKey, "1a2b3c4d")
		return h
	}
	for _, e := range []edit{{HeaderProtocol, "HIPOBJ-RC-V2"}, {HeaderQPN, ""}, {HeaderQPN, "00ABCDEF"}, {HeaderCapabilities, "mp"}, {HeaderKeep, "60"}} {
		if _, err := ParsePrepareResponse(e.apply(put()), OpPut); err != nil {
			t.Errorf("%+v: %v", e, err)
		}
	}
	for _, e := range []edit{
		{HeaderProtocol, ""}, {HeaderProtocol, "hipobj-rc-v1"}, {HeaderReply, ""}, {HeaderReply, "200:" + t4}, {HeaderReply, t1}, {HeaderReply, "200:" + t5},
		{HeaderReply, "200:0100000000" + t1[10:]}, {HeaderPSN, "1"}, {HeaderPSN, "000000"}, {HeaderQPN, "abcdee"}, {HeaderQPN, "000000000"},
		{HeaderMRAddr, ""}, {HeaderMRAddr, "0"}, {HeaderMRRKey, "0"}, {HeaderMRRKey, "000000001"}, {HeaderKeep, "0"}, {HeaderKeep, "x"},
	} {
		r, err := ParsePrepareResponse(e.apply(put()), OpPut)
		if err == nil {
			t.Errorf("%+v accepted", e)
		} else if r != (PrepareResponse{Session: vectorSession}) {
			t.Errorf("%+v: session for CANCEL is missing in %+v", e, r)
		}
	}
	for _, v := range []string{"", vectorSession[1:]} {
		if r, err := ParsePrepareResponse(edit{HeaderSession, v}.apply(put()), OpPut); err == nil || r.Session != "" {
			t.Errorf("session %q: %+v, %v", v, r, err)
		}
	}
	if r, err := ParsePrepareResponse(edit{HeaderMRAddr, "bad"}.apply(header(vectorPrepareReply)), OpGet); err != nil || r.MRAddr != 0 {
		t.Errorf("GET with a bad staging address: %+v, %v", r, err)
	}
}

func TestReadyRequestLeniency(t *testing.T) {
	for _, e := range []edit{{HeaderQPN, "0000000000012345"}, {HeaderMRRKey, "00000000001F2E3D"}, {HeaderCookie, "1A2B3C4D"}} {
		r, err := ParseReadyRequest(e.apply(header(vectorReady)))
		if err != nil || r.QPN != 0x12345 || r.MRRKey != 0x1f2e3d || r.Cookie != 0x1a2b3c4d {
			t.Errorf("%+v: %+v, %v", e, r, err)
		}
	}
	for _, e := range []edit{{HeaderMRAddr, ""}, {HeaderMRRKey, ""}, {HeaderMRRKey, "100000000"}, {HeaderMRAddr, "x"}} {
		r, err := ParseReadyRequest(e.apply(header(vectorReady)))
		if err != nil || r.MRAddr != 0 || r.MRRKey != 0 {
			t.Errorf("%+v: %+v, %v", e, r, err)
		}
	}
	for _, e := range []edit{{HeaderSession, ""}, {HeaderCookie, ""}, {HeaderCookie, "0"}, {HeaderQPN, ""}, {HeaderQPN, "0"}} {
		if r, err := ParseReadyRequest(e.apply(header(vectorReady))); err == nil {
			t.Errorf("%+v: %+v", e, r)
		}
	}
}

func TestNextRequestSyntax(t *testing.T) {
	r, err := ParseNextRequest(header(vectorNext))
	want := NextRequest{Session: vectorSession, Seq: 1, Cookie: 0x1a2b3c4d, Op: OpPut, Target: Target{Bucket: "b", Key: "k"}, Size: 1048576}
	if err != nil || !reflect.DeepEqual(r, want) {
		t.Errorf("%+v, %v", r, err)
	}
	for _, e := range []edit{
		{HeaderSession, ""}, {HeaderSeq, ""}, {HeaderSeq, "0"}, {HeaderSeq, "4294967296"}, {HeaderSeq, "a"}, {HeaderCookie, "0"}, {HeaderOp, "GET"},
		{HeaderTarget, "x"}, {HeaderSize, "0"}, {HeaderOffset, ""}, {HeaderOffset, "1"}, {HeaderMRAddr, ""}, {HeaderMRRKey, ""}, {HeaderMRAddr, "x"},
	} {
		if r, err := ParseNextRequest(e.apply(header(vectorNext))); err == nil {
			t.Errorf("%+v: %+v", e, r)
		}
	}
}

func TestCancelRequestIgnoresCookie(t *testing.T) {
	r, err := ParseCancelRequest(http.Header{HeaderSession: {vectorSession}, HeaderCookie: {"x"}})
	if err != nil || r.Session != vectorSession {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestFinalSyntax(t *testing.T) {
	for _, e := range []edit{
		{HeaderProtocol, ""}, {HeaderCookie, ""}, {HeaderCookie, "1"}, {HeaderBytes, ""}, {HeaderBytes, "-1"}, {HeaderBytes, "9223372036854775808"},
		{HeaderETag, strings.Repeat("e", 128)}, {HeaderVersionID, strings.Repeat("v", 128)}, {HeaderChecksum, "CRC64NVME AAAAAAAAAAB="},
		{HeaderChecksum, "AAAAAAAAAAA="}, {HeaderChecksumCRC64, "AAAAAAAAAAB="},
	} {
		if f, err := ParseFinal(e.apply(header(vectorFinal))); err == nil {
			t.Errorf("%+v: %+v", e, f)
		}
	}
	for _, e := range []edit{{HeaderChecksum, "CRC64NVME rosUhgp5mIg="}, {HeaderChecksumCRC64, "rosUhgp5mIg="}} {
		f, err := ParseFinal(e.apply(header(vectorFinal)))
		if err != nil || !f.HasCRC64 || f.CRC64 != 0xae8b14860a799888 {
			t.Errorf("%+v: %+v, %v", e, f, err)
		}
	}
	if f, err := ParseFinal(edit{HeaderChecksum, "CRC32C AAAAAA=="}.apply(header(vectorFinal))); err != nil || f.HasCRC64 {
		t.Errorf("checksum of another algorithm: %+v, %v", f, err)
	}
	h := header(vectorFinal)
	h.Set(HeaderS3VersionID, "v1")
	if f, err := ParseFinal(h); err != nil || f.VersionID != "v1" {
		t.Errorf("%+v, %v", f, err)
	}
	h.Set(HeaderVersionID, "v2")
	if f, err := ParseFinal(h); err != nil || f.VersionID != "v2" {
		t.Errorf("%+v, %v", f, err)
	}
	if f, err := ParseFinal(edit{HeaderETag, "unquoted"}.apply(header(vectorFinal))); err != nil || f.ETag != "unquoted" {
		t.Errorf("%+v, %v", f, err)
	}
}

func TestFinalLeavesOutWhatPeersReject(t *testing.T) {
	h := Final{Cookie: 1, ETag: strings.Repeat("e", 126), VersionID: "v\n"}.Header()
	if h.Get(HeaderETag) != "" || h.Get(HeaderVersionID) != "" || h.Get(HeaderChecksum) != "" {
		t.Errorf("%v", h)
	}
}

func TestMarker(t *testing.T) {
	if !IsMarker(http.Header{HeaderProtocolStatus: {"unsupported"}}) || IsMarker(nil) || IsMarker(http.Header{HeaderProtocolStatus: {"ok"}}) {
		t.Error("IsMarker")
	}
	if !CheckProtocol(http.Header{HeaderProtocol: {Protocol}}) || CheckProtocol(http.Header{HeaderProtocol: {strings.ToUpper(Protocol)}}) || CheckProtocol(nil) {
		t.Error("CheckProtocol")
	}
}

func drawExtras(t *rapid.T, op Op, target Target) Extras {
	e := Extras{ChecksumAlgorithm: rapid.SampledFrom([]string{"", AlgorithmCRC64NVME}).Draw(t, "algorithm")}
	part := target.UploadID != "" || target.PartNumber != 0
	if op == OpGet || !part {
		e.IfMatch = rapid.SampledFrom([]string{"", "*", "abc", "d41d8-2"}).Draw(t, "if-match")
	}
	if op == OpPut && !part {
		if e.IfMatch == "" {
			e.IfNoneMatch = rapid.SampledFrom([]string{"", "*"}).Draw(t, "if-none-match")
		}
		e.ContentType = rapid.SampledFrom([]string{"", "text/plain; charset=utf-8"}).Draw(t, "type")
		meta := rapid.MapOfN(rapid.StringMatching(`[a-z][a-z0-9-]{0,10}`), rapid.StringMatching(`[ -~äöü&=%]{0,20}`), 0, 4).Draw(t, "meta")
		if len(meta) > 0 {
			e.Meta = meta
		}
	}
	return e
}

func TestRequestRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		op := rapid.SampledFrom([]Op{OpGet, OpPut}).Draw(t, "op")
		target := drawTarget(t)
		size := rapid.Int64Range(1, math.MaxInt64).Draw(t, "size")
		var offset int64
		if op == OpGet {
			offset = rapid.Int64Range(0, math.MaxInt64).Draw(t, "offset")
		}
		cookie := rapid.Uint32Range(1, math.MaxUint32).Draw(t, "cookie")
		session := rapid.StringMatching(`[0-9a-f]{32}`).Draw(t, "session")
		addr, rkey := rapid.Uint64Range(1, math.MaxUint64).Draw(t, "addr"), rapid.Uint32Range(1, math.MaxUint32).Draw(t, "rkey")
		extras := drawExtras(t, op, target)

		prepare := PrepareRequest{
			Token: drawToken(t), PSN: rapid.Uint32Range(1, maxPSN).Draw(t, "psn"), Cookie: cookie, Op: op, Target: target,
			Size: size, Offset: offset, Keep: rapid.Bool().Draw(t, "keep"), Extras: extras,
		}
		if prepare.Keep {
			prepare.Offset, prepare.Extras = 0, Extras{}
		}
		if got, err := ParsePrepareRequest(prepare.Header()); err != nil || !reflect.DeepEqual(got, prepare) {
			t.Fatalf("%+v became %+v, %v", prepare, got, err)
		}
		ready := ReadyRequest{
			Session: session, Cookie: cookie, QPN: rapid.Uint32Range(1, maxQPN).Draw(t, "qpn"), MRAddr: addr, MRRKey: rkey,
			ChecksumAlgorithm: extras.ChecksumAlgorithm,
		}
		if got, err := ParseReadyRequest(ready.Header()); err != nil || got != ready {
			t.Fatalf("%+v became %+v, %v", ready, got, err)
		}
		next := NextRequest{
			Session: session, Seq: rapid.Uint32Range(1, math.MaxUint32).Draw(t, "seq"), Cookie: cookie, Op: op, Target: target,
			Size: size, Offset: offset, MRAddr: addr, MRRKey: rkey, Extras: extras,
		}
		if got, err := ParseNextRequest(next.Header()); err != nil || !reflect.DeepEqual(got, next) {
			t.Fatalf("%+v became %+v, %v", next, got, err)
		}
	})
}

func TestAnswerRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		caps := Capabilities(rapid.Uint16Range(0, 1<<len(capabilityWords)-1).Draw(t, "capabilities"))
		tok := drawToken(t)
		prepare := PrepareResponse{
			Token: tok, Session: rapid.StringMatching(`[0-9a-f]{32}`).Draw(t, "session"), PSN: rapid.Uint32Range(1, maxPSN).Draw(t, "psn"), QPN: tok.QPNum,
			MRAddr: rapid.Uint64Range(1, math.MaxUint64).Draw(t, "addr"), MRRKey: rapid.Uint32Range(1, math.MaxUint32).Draw(t, "rkey"),
			Keep: time.Duration(rapid.Uint16().Draw(t, "keep")) * time.Second, Capabilities: caps,
		}
		if got, err := ParsePrepareResponse(prepare.Header(), OpPut); err != nil || got != prepare {
			t.Fatalf("%+v became %+v, %v", prepare, got, err)
		}
		final := Final{
			Cookie: rapid.Uint32().Draw(t, "cookie"), Bytes: rapid.Int64Range(0, math.MaxInt64).Draw(t, "bytes"),
			ETag: rapid.StringMatching(`[0-9a-f-]{0,125}`).Draw(t, "etag"), VersionID: rapid.StringMatching(`[0-9a-zA-Z.]{0,127}`).Draw(t, "version"),
			HasCRC64: rapid.Bool().Draw(t, "has crc"), Capabilities: caps,
		}
		if final.HasCRC64 {
			final.CRC64 = rapid.Uint64().Draw(t, "crc")
		}
		if got, err := ParseFinal(final.Header()); err != nil || got != final {
			t.Fatalf("%+v became %+v, %v", final, got, err)
		}
	})
}

func FuzzParsePrepareRequest(f *testing.F) {
	f.Add(vectorPrepare)
	f.Add(strings.Replace(vectorPrepare, "GET", "PUT", 1) + "If-None-Match: *\nX-Amz-Rdma-Meta: a=b&c=%20\nX-Amz-Rdma-Content-Type: text/plain\n")
	f.Add(vectorPrepare + "X-Amz-Rdma-Keep: 1\n")
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParsePrepareRequest(header(s))
		if err != nil {
			return
		}
		if r.Size < 1 || r.Offset < 0 || r.PSN == 0 || r.PSN > maxPSN || r.Cookie == 0 {
			t.Fatalf("accepted %+v", r)
		}
		if len(r.Target.Encode()) > MaxTarget || len(FormatMeta(r.Meta)) > maxMetaText {
			return
		}
		if again, err := ParsePrepareRequest(r.Header()); err != nil || !reflect.DeepEqual(again, r) {
			t.Fatalf("%+v became %+v, %v", r, again, err)
		}
	})
}

func FuzzParseNextRequest(f *testing.F) {
	f.Add(vectorNext)
	f.Add(strings.NewReplacer("PUT", "GET", "Mr-Addr: 0", "Mr-Addr: 1f", "Mr-Rkey: 0", "Mr-Rkey: 2").Replace(vectorNext) + "If-Match: \"a\"\n")
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseNextRequest(header(s))
		if err != nil {
			return
		}
		if r.Op == OpGet && (r.MRAddr == 0 || r.MRRKey == 0) {
			t.Fatalf("accepted %+v", r)
		}
		if len(r.Target.Encode()) > MaxTarget || len(FormatMeta(r.Meta)) > maxMetaText {
			return
		}
		if again, err := ParseNextRequest(r.Header()); err != nil || !reflect.DeepEqual(again, r) {
			t.Fatalf("%+v became %+v, %v", r, again, err)
		}
	})
}

func FuzzParseReadyRequest(f *testing.F) {
	f.Add(vectorReady)
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseReadyRequest(header(s))
		if err == nil {
			if again, err := ParseReadyRequest(r.Header()); err != nil || again != r {
				t.Fatalf("%+v became %+v, %v", r, again, err)
			}
		}
		c, err := ParseCancelRequest(header(s))
		if err == nil && len(c.Session) != 32 {
			t.Fatalf("accepted %+v", c)
		}
	})
}

func FuzzParsePrepareResponse(f *testing.F) {
	f.Add(vectorPrepareReply, false)
	f.Add(vectorPrepareReply+"X-Amz-Rdma-Mr-Addr: 7f3a5c001000\nX-Amz-Rdma-Mr-Rkey: 1a2b3c4d\nX-Amz-Rdma-Keep: 60\n", true)
	f.Fuzz(func(t *testing.T, s string, put bool) {
		op := OpGet
		if put {
			op = OpPut
		}
		r, err := ParsePrepareResponse(header(s), op)
		if err != nil {
			if r.Session != "" && len(r.Session) != 32 {
				t.Fatalf("session %q for CANCEL", r.Session)
			}
			return
		}
		if r.Token.IsZero() || r.QPN == 0 || r.PSN == 0 || put && (r.MRAddr == 0 || r.MRRKey == 0) {
			t.Fatalf("accepted %+v", r)
		}
		if again, err := ParsePrepareResponse(r.Header(), op); err != nil || again != r {
			t.Fatalf("%+v became %+v, %v", r, again, err)
		}
	})
}

func FuzzParseFinal(f *testing.F) {
	f.Add(vectorFinal)
	f.Add(vectorFinal + "X-Amz-Rdma-Checksum: CRC64NVME rosUhgp5mIg=\nX-Amz-Version-Id: v\nX-Amz-Rdma-Capabilities: mp, ep\n")
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseFinal(header(s))
		if err != nil {
			return
		}
		if r.Bytes < 0 || len(r.ETag) > maxIdent || len(r.VersionID) > maxIdent {
			t.Fatalf("accepted %+v", r)
		}
		if r.Header() == nil {
			t.Fatal("no header")
		}
	})
}

func FuzzParseValues(f *testing.F) {
	for _, s := range []string{"000001", "FFFFFF", "0x0001", "deadbeeg", "CRC64NVME rosUhgp5mIg=", "CRC64NVME AAAAAAAAAAB=", "a=b&c=%20", "mp,ep big"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if v, err := ParsePSN(s); err == nil && (v == 0 || v > maxPSN) {
			t.Errorf("PSN %q = %d", s, v)
		}
		if v, err := ParseReplyPSN(s); err == nil && FormatPSN(v) != strings.ToLower(s) {
			t.Errorf("PSN %q = %d", s, v)
		}
		if v, err := ParseReplyCookie(s); err == nil && FormatCookie(v) != strings.ToLower(s) {
			t.Errorf("cookie %q = %d", s, v)
		}
		if v, err := ParseCookie(s); err == nil && v == 0 {
			t.Errorf("cookie %q = 0", s)
		}
		if v, err := ParseChecksum(s); err == nil && FormatChecksum(v) != s {
			t.Errorf("checksum %q = %x", s, v)
		}
		if m, err := ParseMeta(s); err == nil && len(FormatMeta(m)) <= maxMetaText {
			if again, err := ParseMeta(FormatMeta(m)); err != nil || !maps.Equal(again, m) {
				t.Errorf("metadata %q: %v became %v, %v", s, m, again, err)
			}
		}
		if c := ParseCapabilities(s); ParseCapabilities(c.String()) != c {
			t.Errorf("capabilities %q = %s", s, c)
		}
	})
}
