package rctest

import (
	"errors"
	"net/url"
	"strings"
)

// target is what a server makes of x-amz-rdma-target. name is that of the object
// in the peer's map.
type target struct {
	bucket, name, query string
}

const maxTarget = 2047

func (pr *Profile) target(s string) (target, error) {
	if len(s) > maxTarget || !strings.HasPrefix(s, "/") {
		return target{}, errors.New("target: too long or no leading slash")
	}
	if pr.Target == TargetVerbatim {
		bucket, _, _ := strings.Cut(s[1:], "/")
		return target{bucket: bucket, name: s[1:]}, nil
	}
	if pr.Target == TargetLibrary {
		s = decodeWhole(s)
	}
	path, query, _ := strings.Cut(s, "?")
	bucket, key, _ := strings.Cut(path[1:], "/")
	if pr.Target == TargetDecoded {
		var err1, err2 error
		bucket, err1 = url.PathUnescape(bucket)
		key, err2 = url.PathUnescape(key)
		if err := errors.Join(err1, err2); err != nil {
			return target{}, err
		}
	}
	if bucket == "" || key == "" {
		return target{}, errors.New("target: no bucket or key")
	}
	return target{bucket: bucket, name: bucket + "/" + key, query: query}, nil
}

// decodeWhole decodes like cpp-httplib: what is no escape stays as it is.
func decodeWhole(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if d, err := url.PathUnescape(s[i : i+3]); err == nil {
				b.WriteString(d)
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// queryRule is the row of section 11.5 for a query.
func (pr *Profile) queryRule(op, query string) QueryRule {
	values, err := url.ParseQuery(query)
	if err != nil {
		return pr.OtherQuery
	}
	switch {
	case op == "PUT" && len(values) == 2 && values.Has("partNumber") && values.Has("uploadId"):
		return pr.PartPut
	case op == "GET" && values.Has("partNumber"):
		return pr.PartGet
	case op == "GET" && len(values) == 1 && values.Has("versionId"):
		return pr.VersionGet
	}
	return pr.OtherQuery
}
