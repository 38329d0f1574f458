package token

import (
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestTargetVectors(t *testing.T) {
	for s, want := range map[string]Target{
		"/b/k":                           {Bucket: "b", Key: "k"},
		"/b/a/b?partNumber=1&uploadId=x": {Bucket: "b", Key: "a/b", PartNumber: 1, UploadID: "x"},
		"/b/a%2Fb":                       {Bucket: "b", Key: "a/b"},
		"/b/a%2fb%20c+d":                 {Bucket: "b", Key: "a/b c+d"},
		"/b/raw space":                   {Bucket: "b", Key: "raw space"},
		"/b/k?":                          {Bucket: "b", Key: "k"},
		"/b//k/":                         {Bucket: "b", Key: "/k/"},
		"/b/%3Fq%2525?versionId=v%2F1":   {Bucket: "b", Key: "?q%25", VersionID: "v/1"},
		"/b/k?x=a+b&y":                   {Bucket: "b", Key: "k", Other: map[string]string{"x": "a+b", "y": ""}},
		"/b/k?partNumber=10000":          {Bucket: "b", Key: "k", PartNumber: 10000},
		"/b/%ff":                         {Bucket: "b", Key: "\xff"},
	} {
		got, err := ParseTarget(s)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("ParseTarget(%q) = %+v, %v; want %+v", s, got, err, want)
		}
	}
	for _, s := range []string{
		"", "b/k", "/b", "/b/", "//k", "/b/k%2", "/b/k%zz", "/", "/?a=b", "/b/?a=b", "/b/k?a=%", "/b/k?a=1&a=2", "/b/k?=1", "/b/k?a=1&",
		"/b/k?partNumber=0&uploadId=x", "/b/k?partNumber=10001&uploadId=x", "/b/k?partNumber=x&uploadId=x", "/b/k?partNumber=+1&uploadId=x",
		"/b/k?partNumber=1&uploadId=", "/b/k?versionId=", "/b/k?partNumber=", "/%2e%2e/k", "/./k", "/a%2Fb/k", "/a%00/k",
		"/b/" + strings.Repeat("k", MaxTarget),
	} {
		if got, err := ParseTarget(s); err == nil {
			t.Errorf("ParseTarget(%q) = %+v", s, got)
		}
	}
	if _, err := ParseTarget("/b/" + strings.Repeat("k", MaxTarget-3)); err != nil {
		t.Error(err)
	}
}

func TestTargetEncode(t *testing.T) {
	for want, target := range map[string]Target{
		"/bucket1/dir/my%20key.bin":                       {Bucket: "bucket1", Key: "dir/my key.bin"},
		"/bucket1/obj?partNumber=7&uploadId=a%2Fb%3D":     {Bucket: "bucket1", Key: "obj", PartNumber: 7, UploadID: "a/b="},
		"/b/%C3%BC%2B~?versionId=v&x=":                    {Bucket: "b", Key: "ü+~", VersionID: "v", Other: map[string]string{"x": ""}},
		"/b.c-d/a_b/%3F%23%25%26%3D%40%3A%24%2C%3B%5B%27": {Bucket: "b.c-d", Key: "a_b/?#%&=@:$,;['"},
	} {
		if got := target.Encode(); got != want {
			t.Errorf("Encode() = %s, want %s", got, want)
		}
	}
}

func TestTargetKinds(t *testing.T) {
	for _, v := range []struct {
		target      Target
		part, plain bool
	}{
		{Target{}, false, true},
		{Target{UploadID: "u", PartNumber: 1}, true, false},
		{Target{UploadID: "u"}, false, false},
		{Target{PartNumber: 1}, false, false},
		{Target{VersionID: "v"}, false, false},
		{Target{UploadID: "u", PartNumber: 1, VersionID: "v"}, false, false},
		{Target{UploadID: "u", PartNumber: 1, Other: map[string]string{"x": ""}}, false, false},
	} {
		if v.target.IsPart() != v.part || v.target.Plain() != v.plain {
			t.Errorf("%+v: part %v, plain %v", v.target, v.target.IsPart(), v.target.Plain())
		}
	}
}

func drawTarget(t *rapid.T) Target {
	target := Target{
		Bucket: rapid.StringMatching(`[a-z0-9][a-z0-9.-]{1,20}[a-z0-9]`).Draw(t, "bucket"),
		Key:    string(rapid.SliceOfN(rapid.Byte(), 1, 100).Draw(t, "key")),
	}
	if rapid.Bool().Draw(t, "has upload") {
		target.UploadID = string(rapid.SliceOfN(rapid.Byte(), 1, 20).Draw(t, "upload"))
	}
	if rapid.Bool().Draw(t, "has part") {
		target.PartNumber = rapid.IntRange(1, MaxParts).Draw(t, "part")
	}
	if rapid.Bool().Draw(t, "has version") {
		target.VersionID = string(rapid.SliceOfN(rapid.Byte(), 1, 20).Draw(t, "version"))
	}
	if rapid.Bool().Draw(t, "has other") {
		target.Other = rapid.MapOfN(rapid.StringMatching(`[a-m&=? ]{1,8}`), rapid.String(), 1, 3).Draw(t, "other")
	}
	return target
}

func TestTargetRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawTarget(t)
		got, err := ParseTarget(want.Encode())
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v became %+v, %v", want, got, err)
		}
	})
}

func FuzzParseTarget(f *testing.F) {
	for _, s := range []string{"/b/k", "/b/a/b?partNumber=1&uploadId=x", "/b/a%2Fb", "", "b/k", "/b", "/b/", "//k", "/b/k%2", "/b/k%zz", "/b/k?x=a+b&y"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		target, err := ParseTarget(s)
		if err != nil {
			return
		}
		if target.Bucket == "" || target.Key == "" || strings.Contains(target.Bucket, "/") {
			t.Fatalf("ParseTarget(%q) = %+v", s, target)
		}
		text := target.Encode()
		if len(text) > MaxTarget {
			return
		}
		if again, err := ParseTarget(text); err != nil || !reflect.DeepEqual(again, target) {
			t.Fatalf("%q: %+v became %+v, %v", s, target, again, err)
		}
	})
}
