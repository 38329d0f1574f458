package main

import (
	"fmt"
	"strings"
)

// target is what s3://BUCKET/PREFIX names; an empty bucket means all buckets.
type target struct{ bucket, prefix string }

// UnmarshalText parses the command line's form. A prefix is kept as typed but
// for one trailing slash, which every prefix has.
func (t *target) UnmarshalText(text []byte) error {
	rest, ok := strings.CutPrefix(string(text), "s3://")
	if !ok {
		return fmt.Errorf("%q is not s3://BUCKET, s3://BUCKET/PREFIX or s3:// for all buckets", text)
	}
	bucket, prefix, _ := strings.Cut(rest, "/")
	if bucket == "" && prefix != "" {
		return fmt.Errorf("%q names a prefix but no bucket", text)
	}
	prefix = strings.TrimSuffix(prefix, "/")
	for part := range strings.SplitSeq(prefix, "/") {
		if prefix != "" && (part == "" || part == "." || part == "..") {
			return fmt.Errorf("%q: a prefix cannot have empty, \".\" or \"..\" components", text)
		}
	}
	if prefix != "" {
		prefix += "/"
	}
	*t = target{bucket: bucket, prefix: prefix}
	return nil
}

func (t target) String() string { return "s3://" + t.bucket + strings.TrimSuffix("/"+t.prefix, "/") }
