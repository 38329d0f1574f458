package store

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
)

// Head describes an object. ErrNotFound means that S3 said the key is not there,
// not that something answered 404.
func (s *Store) Head(ctx context.Context, bucket, key string) (Info, error) {
	o, err := s.stat(ctx, call{"Head", bucket, key})
	if err != nil {
		return Info{}, err
	}
	return infoOf(bucket, key, o), nil
}

// stat is Head with everything the answer holds.
func (s *Store) stat(ctx context.Context, c call) (minio.ObjectInfo, error) {
	if err := checkKey(c); err != nil {
		return minio.ObjectInfo{}, err
	}
	var o minio.ObjectInfo
	err := s.do(ctx, c, s.o.Timeout, func(ctx context.Context) (err error) {
		o, err = s.core.StatObject(ctx, c.bucket, c.key, minio.StatObjectOptions{})
		var resp minio.ErrorResponse
		if !errors.As(err, &resp) {
			return err
		}
		switch resp.StatusCode {
		case http.StatusNotFound:
			if s.vouchedFor(c.bucket) {
				return err
			}
		case http.StatusBadRequest, http.StatusForbidden:
		default:
			return err
		}
		return s.explainHead(ctx, c, err)
	})
	return o, err
}

// explainHead finds out what a bodyless answer to HEAD meant: a 404 may be the
// bucket's or the access key's, a 400 an expired token's. The answer to a GET tells.
func (s *Store) explainHead(ctx context.Context, c call, headErr error) error {
	var o minio.GetObjectOptions
	if err := o.SetRange(0, 0); err != nil {
		return err
	}
	body, _, _, err := s.core.GetObject(ctx, c.bucket, c.key, o)
	if err == nil {
		body.Close()
		return s.contradiction(c, headErr)
	}
	var resp minio.ErrorResponse
	if !errors.As(err, &resp) {
		return err
	}
	switch resp.Code {
	case "InvalidRange":
		return s.contradiction(c, headErr)
	case "NoSuchKey":
		s.answered(c.bucket)
	}
	return err
}

// contradiction is for an object that HEAD does not see and GET does. When it
// was created in between, another look succeeds.
func (s *Store) contradiction(c call, headErr error) error {
	var resp minio.ErrorResponse
	if errors.As(headErr, &resp) && resp.StatusCode == http.StatusNotFound {
		return errors.Join(ErrBadAnswer, errors.New("HEAD and GET contradict each other"))
	}
	return headErr
}

func infoOf(bucket, key string, o minio.ObjectInfo) Info {
	i := Info{
		Bucket: bucket, Key: key, Size: o.Size, ETag: o.ETag, ModTime: o.LastModified.Truncate(time.Second),
		ContentType: o.ContentType, StorageClass: o.StorageClass, Meta: make(map[string]string, len(o.UserMetadata)),
	}
	if i.StorageClass == "" {
		i.StorageClass = o.Metadata.Get("X-Amz-Storage-Class")
	}
	for k, v := range o.UserMetadata {
		i.Meta[strings.ToLower(k)] = v
	}
	return i
}
