package token

import (
	"errors"
	"math"
	"net/http"
	"strings"
	"testing"
)

func TestValueSyntax(t *testing.T) {
	type parser func(string) (uint64, error)
	wrap := func(f func(string) (uint32, error)) parser {
		return func(s string) (uint64, error) { v, err := f(s); return uint64(v), err }
	}
	for _, v := range []struct {
		name  string
		parse parser
		good  map[string]uint64
		bad   []string
	}{
		{"PSN in a reply", wrap(ParseReplyPSN),
			map[string]uint64{"000001": 1, "FFFFFF": 0xffffff, "0a1B2c": 0x0a1b2c},
			[]string{"000000", "1", "1000000", "0x0001", "00000g", "", "+00001", "0000001"}},
		{"PSN in a request", wrap(ParsePSN),
			map[string]uint64{"1": 1, "000001": 1, "00ffffff": 0xffffff, "aBc": 0xabc},
			[]string{"", "0", "000000", "1000000", "000000001", "-1", "0x1", "g"}},
		{"cookie in a reply", wrap(ParseReplyCookie),
			map[string]uint64{"00000001": 1, "DEADBEEF": 0xdeadbeef},
			[]string{"1", "123456789", "deadbeeg", ""}},
		{"cookie in a request", wrap(ParseCookie),
			map[string]uint64{"1": 1, "deadBEEF": 0xdeadbeef},
			[]string{"", "0", "00000000", "123456789", "0x1"}},
		{"QP number in a request", wrap(ParseQPN),
			map[string]uint64{"1": 1, "0000000000012345": 0x12345, "FFFFFF": 0xffffff},
			[]string{"", "0", "1000000", "00000000000000001", "x"}},
		{"QP number in a reply", wrap(ParseReplyQPN),
			map[string]uint64{"abcdef": 0xabcdef, "00000001": 1},
			[]string{"", "0", "000000001", "1000000"}},
		{"address", parseAddr,
			map[string]uint64{"0": 0, "7f3a5c001000": 0x7f3a5c001000, "FFFFFFFFFFFFFFFF": math.MaxUint64},
			[]string{"", "00000000000000000", "-1", "0x1"}},
		{"decimal", func(s string) (uint64, error) { return decimal(HeaderSize, s) },
			map[string]uint64{"0": 0, "18446744073709551615": math.MaxUint64, "00000000000000000001": 1},
			[]string{"", "18446744073709551616", "000000000000000000001", "+1", "-1", "1 ", "1e3", "0x1"}},
	} {
		for s, want := range v.good {
			if got, err := v.parse(s); err != nil || got != want {
				t.Errorf("%s %q = %d, %v; want %d", v.name, s, got, err, want)
			}
		}
		for _, s := range v.bad {
			if got, err := v.parse(s); err == nil {
				t.Errorf("%s %q accepted as %d", v.name, s, got)
			}
		}
	}
}

func TestSessionSyntax(t *testing.T) {
	const mixed = "00112233445566778899AABBccddeeff"
	if got, err := ParseSession(mixed); err != nil || got != mixed {
		t.Errorf("ParseSession = %q, %v", got, err)
	}
	for _, s := range []string{"", mixed[1:], mixed + "0", "g" + mixed[1:]} {
		if _, err := ParseSession(s); err == nil {
			t.Errorf("%q accepted", s)
		}
	}
}

func TestFormat(t *testing.T) {
	for got, want := range map[string]string{
		FormatPSN(0x0a1b2c): "0a1b2c", FormatPSN(1): "000001", FormatCookie(0xbeef): "0000beef", FormatCookie(0xdeadbeef): "deadbeef",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestChecksumVectors(t *testing.T) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for _, v := range []struct {
		data []byte
		crc  uint64
		text string
	}{
		{nil, 0, "CRC64NVME AAAAAAAAAAA="},
		{[]byte("123456789"), 0xae8b14860a799888, "CRC64NVME rosUhgp5mIg="},
		{make([]byte, 4096), 0x6482d367eb22b64e, "CRC64NVME ZILTZ+sitk4="},
		{all, 0xff71e21279d9966e, "CRC64NVME /3HiEnnZlm4="},
	} {
		if got := CRC64NVME(v.data); got != v.crc {
			t.Errorf("CRC64NVME of %d bytes = %016x, want %016x", len(v.data), got, v.crc)
		}
		if got := FormatChecksum(v.crc); got != v.text {
			t.Errorf("FormatChecksum = %q, want %q", got, v.text)
		}
		if got, err := ParseChecksum(v.text); err != nil || got != v.crc {
			t.Errorf("ParseChecksum(%q) = %016x, %v", v.text, got, err)
		}
	}
	for _, s := range []string{
		"CRC64NVME AAAAAAAAAAB=", "CRC64NVME AAAAAAAAAA==", "crc64nvme AAAAAAAAAAA=", "AAAAAAAAAAA=",
		"CRC64NVME AAAAAAAAAAA", "CRC64NVME  AAAAAAAAAAA=", "CRC64NVME AAAAAA\nAAAAA=", "CRC64NVME AAAAAAAAAA-=", "", "CRC32C AAAAAA==",
	} {
		if got, err := ParseChecksum(s); err == nil {
			t.Errorf("ParseChecksum(%q) = %x", s, got)
		}
	}
}

func TestCapabilities(t *testing.T) {
	all := CapMP | CapEP | CapBig | CapCond | CapCRC | CapKeep | CapMeta | CapVer | CapST
	for s, want := range map[string]Capabilities{
		"": 0, "mp": CapMP, " mp,ep  big,,\tcond ": CapMP | CapEP | CapBig | CapCond, "new mpx m p MP": 0, "crc keep meta": CapCRC | CapKeep | CapMeta,
		all.String(): all,
	} {
		if got := ParseCapabilities(s); got != want {
			t.Errorf("ParseCapabilities(%q) = %s, want %s", s, got, want)
		}
	}
	if !all.Has(CapMP|CapKeep) || CapMP.Has(CapMP|CapEP) {
		t.Error("Has")
	}
	h := http.Header{HeaderCapabilities: {"mp", "ep unknown"}}
	if got := CapabilitiesOf(h); got != CapMP|CapEP {
		t.Errorf("two headers: %s", got)
	}
}

func TestMeta(t *testing.T) {
	m, err := ParseMeta("a=%20x%26y&empty=&mtime=1.5+2")
	if err != nil || len(m) != 3 || m["a"] != " x&y" || m["mtime"] != "1.5+2" {
		t.Errorf("%q, %v", m, err)
	}
	if got := FormatMeta(map[string]string{"b": "ü /", "a": ""}); got != "a=&b=%C3%BC%20%2F" {
		t.Errorf("FormatMeta = %s", got)
	}
	for _, s := range []string{"A=1", "=1", "a=1&a=2", "a=%0d", "a=%7F", "a=%2", "a b=1", "a%3A=1", "a=1&"} {
		if m, err := ParseMeta(s); err == nil || errors.Is(err, ErrMetaTooLarge) {
			t.Errorf("ParseMeta(%q) = %v, %v", s, m, err)
		}
	}
	if _, err := ParseMeta("a=" + strings.Repeat("x", MaxMeta-1)); err != nil {
		t.Errorf("%d bytes refused: %v", MaxMeta, err)
	}
	for _, s := range []string{"a=" + strings.Repeat("x", MaxMeta), "a=" + strings.Repeat("%41", 1400)} {
		if _, err := ParseMeta(s); !errors.Is(err, ErrMetaTooLarge) {
			t.Errorf("%d bytes of metadata: %v", len(s), err)
		}
	}
}

func TestETagQuotes(t *testing.T) {
	for _, v := range [][2]string{{"abc", `"abc"`}, {"", `""`}, {`a"`, `"a""`}} {
		if got := QuoteETag(v[0]); got != v[1] {
			t.Errorf("QuoteETag(%s) = %s", v[0], got)
		}
		if got := UnquoteETag(v[1]); got != v[0] {
			t.Errorf("UnquoteETag(%s) = %s", v[1], got)
		}
	}
	if QuoteETag(`"abc"`) != `"abc"` || UnquoteETag(`"`) != `"` {
		t.Error("quotes")
	}
}

func TestSyntaxErrorHidesValue(t *testing.T) {
	h := http.Header{HeaderSession: {"secretsecretsecret"}}
	_, err := ParseCancelRequest(h)
	var syn *SyntaxError
	if !errors.As(err, &syn) || syn.Header != HeaderSession || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
}
