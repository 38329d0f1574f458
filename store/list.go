package store

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
)

const maxListKeys = 1000

// List returns one page of keys and, unless Recursive, common prefixes. Keys come
// as they are stored, byte for byte: the listing is asked for URL-encoded and
// decoded once.
func (s *Store) List(ctx context.Context, r ListRequest) (Page, error) {
	c := call{op: "List", bucket: r.Bucket, key: r.Prefix}
	if err := checkNames(c); err != nil {
		return Page{}, err
	}
	if r.Max <= 0 || r.Max > maxListKeys {
		r.Max = maxListKeys
	}
	delimiter := "/"
	if r.Recursive {
		delimiter = ""
	}
	if r.Token != "" {
		r.StartAfter = ""
	}
	var res minio.ListBucketV2Result
	err := s.do(ctx, c, s.o.Timeout, func(ctx context.Context) error {
		// minio's paged listing takes no context.
		core, err := s.newCore(withContext{ctx, s.tr})
		if err != nil {
			return err
		}
		res, err = core.ListObjectsV2(r.Bucket, r.Prefix, r.StartAfter, r.Token, delimiter, r.Max)
		return err
	})
	if err != nil {
		return Page{}, err
	}
	p := Page{Infos: make([]Info, 0, len(res.Contents)+len(res.CommonPrefixes))}
	if res.IsTruncated {
		p.Next = res.NextContinuationToken
	}
	for i := range res.Contents {
		o := &res.Contents[i]
		p.Infos = append(p.Infos, Info{
			Bucket: r.Bucket, Key: o.Key, Size: o.Size, ETag: trimETag(o.ETag),
			ModTime: o.LastModified.Truncate(time.Second), StorageClass: o.StorageClass,
		})
	}
	for _, cp := range res.CommonPrefixes {
		p.Infos = append(p.Infos, Info{Bucket: r.Bucket, Key: cp.Prefix, IsPrefix: true})
	}
	slices.SortFunc(p.Infos, func(a, b Info) int { return strings.Compare(a.Key, b.Key) })
	return p, nil
}

func trimETag(s string) string {
	return strings.TrimSuffix(strings.TrimPrefix(s, `"`), `"`)
}
