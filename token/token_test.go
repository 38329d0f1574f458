package token

import (
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Vectors of section 18.1.
const (
	t1 = "014523010000000000000000000000ffffc000020a0000000000000000000000000000000000000000010000"
	t2 = "01efcdab0000000000000000000000ffffc00002144d3c2b1a0010005c3a7f00000000100000000000010000"
	t3 = "0117020000fe80000000000000505400fffe1234560000000000000000000000000000000000000000011200"
	t5 = "00b2a1040020010db8000000000000000000000001eeffc0008877665544332211001000000000000002efbe"
)

var t4 = strings.Repeat("0", 88)

func mustParse(t testing.TB, s string) Token {
	t.Helper()
	tok, err := Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func gid(s string) [16]byte { return netip.MustParseAddr(s).As16() }

func TestTokenVectors(t *testing.T) {
	for _, v := range []struct {
		text string
		want Token
	}{
		{t1, Token{Transport: 1, QPNum: 0x012345, GID: gid("::ffff:192.0.2.10"), Port: 1}},
		{t2, Token{Transport: 1, QPNum: 0xabcdef, GID: gid("::ffff:192.0.2.20"), RKey: 0x1a2b3c4d, Addr: 0x7f3a5c001000, Length: 1048576, Port: 1}},
		{t3, Token{Transport: 1, QPNum: 0x217, GID: gid("fe80::5054:ff:fe12:3456"), Port: 1, LID: 0x12}},
		{t4, Token{}},
		{strings.ToUpper(t1), Token{Transport: 1, QPNum: 0x012345, GID: gid("::ffff:192.0.2.10"), Port: 1}},
	} {
		got, err := Parse(v.text)
		if err != nil || got != v.want {
			t.Errorf("Parse(%s) = %+v, %v; want %+v", v.text, got, err, v.want)
		}
		if s := v.want.String(); s != strings.ToLower(v.text) {
			t.Errorf("String() = %s, want %s", s, v.text)
		}
		reply, err := ParseReply("200:" + v.text)
		if err != nil || reply != v.want {
			t.Errorf("ParseReply(200:%s) = %+v, %v", v.text, reply, err)
		}
	}
	if !mustParse(t, t4).IsZero() || mustParse(t, t1).IsZero() {
		t.Error("IsZero")
	}
}

// T5 has distinct bytes in every field, so that a wrong byte order shows.
func TestTokenEncodeFields(t *testing.T) {
	tok := Token{QPNum: 0x04a1b2, GID: gid("2001:db8::1"), RKey: 0x00c0ffee, Addr: 0x1122334455667788, Length: 4096, Port: 2, LID: 0xbeef}
	if got := tok.String(); got != t5 {
		t.Errorf("got  %s\nwant %s", got, t5)
	}
}

func TestTokenRejected(t *testing.T) {
	noGID := t1[:10] + strings.Repeat("0", 32) + t1[42:]
	for name, s := range map[string]string{
		"DC transport": t5, "short": t1[:87], "long": t1 + "0", "not hex": "g" + t1[1:], "no GID": noGID, "empty": "",
		"25-bit QP number": "0100000001" + t1[10:], "suffix": t1 + ":1:2", "blank": " " + t1[1:],
	} {
		if tok, err := Parse(s); err == nil {
			t.Errorf("%s: Parse accepted %+v", name, tok)
		}
	}
	for _, s := range []string{t5, t1[:87], t1 + "0", "g" + t1[1:], noGID, t1 + ":", t1 + ":1", t1 + "::1", t1 + ":1:", t1 + ":1:2:3", t1 + ":1:00000000000000002", t1 + ":x:1"} {
		if tok, err := ParseRequest(s); err == nil {
			t.Errorf("ParseRequest(%q) = %+v", s, tok)
		}
	}
	for _, s := range []string{"", "200 " + t1, "200:", "204:" + t1, t1, "200:" + t1 + ":1:2", "200:" + t5} {
		if tok, err := ParseReply(s); err == nil {
			t.Errorf("ParseReply(%q) = %+v", s, tok)
		}
	}
}

func TestTokenSuffix(t *testing.T) {
	got, err := ParseRequest(t1 + ":00007f3a5c001000:0000000000100000")
	if err != nil || got != mustParse(t, t1) {
		t.Errorf("T6 = %+v, %v", got, err)
	}
}

func TestShape(t *testing.T) {
	for s, want := range map[string]Shape{
		t1:                   ShapeRC,
		strings.ToUpper(t2):  ShapeRC,
		t1 + ":1:2":          ShapeRC,
		t1[:87]:              ShapeUnknown,
		"":                   ShapeUnknown,
		"rc:00:1:2:3":        ShapeUnknown,
		"00007f3a:00100000:": ShapeUnknown,
		"a:b:ofi1:c":         ShapeOFI,
		"00007f3a5c001000:00100000:1a2b3c4d:0000:0a0b0c:1:00000000000000000000ffffc000020a":         ShapeCuObject,
		"00007f3a5c001000:00100000:1a2b3c4d:0000:0a0b0c:1:00000000000000000000ffffc000020a:7f:1000": ShapeCuObject,
		"rc:00112233445566778899aabbccddeeff:7f3a5c001000:100000:1a2b3c4d":                          ShapeShim,
	} {
		if got := ShapeOf(s); got != want {
			t.Errorf("ShapeOf(%q) = %v, want %v", s, got, want)
		}
	}
}

func drawToken(t *rapid.T) Token {
	tok := Token{
		Transport: TransportRC,
		QPNum:     rapid.Uint32Range(1, maxQPN).Draw(t, "qpn"),
		RKey:      rapid.Uint32().Draw(t, "rkey"),
		Addr:      rapid.Uint64().Draw(t, "addr"),
		Length:    rapid.Uint64().Draw(t, "length"),
		Port:      rapid.Byte().Draw(t, "port"),
		LID:       rapid.Uint16().Draw(t, "lid"),
	}
	copy(tok.GID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "gid"))
	tok.GID[15] |= 1
	return tok
}

func TestTokenRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawToken(t)
		got, err := Parse(want.String())
		if err != nil || got != want {
			t.Fatalf("%+v became %+v, %v", want, got, err)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{t1, t2, t3, t4, t5, t1 + ":00007f3a5c001000:0000000000100000", "200:" + t2, "200:", t1 + ":"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if tok, err := Parse(s); err == nil && tok.String() != strings.ToLower(s) {
			t.Errorf("Parse(%q) encodes as %s", s, tok)
		}
		if tok, err := ParseRequest(s); err == nil && !strings.HasPrefix(strings.ToLower(s), tok.String()) {
			t.Errorf("ParseRequest(%q) encodes as %s", s, tok)
		}
		if tok, err := ParseReply(s); err == nil && tok.Reply() != strings.ToLower(s) {
			t.Errorf("ParseReply(%q) encodes as %s", s, tok)
		}
		if s := ShapeOf(s).String(); s == "" {
			t.Error("shape without name")
		}
	})
}
