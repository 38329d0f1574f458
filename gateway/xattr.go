package gateway

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/versity/versitygw/backend/meta"
)

// Names of versitygw's attributes that the gateway looks at itself.
const (
	etagAttr      = "etag"
	partTableAttr = "mp-metadata"
)

// xattrStore is versitygw's metadata in extended attributes, with two
// differences.
//
// The table of parts may be missing: it grows with the number of parts and
// does not fit the 4 KiB that ext4 has for all attributes of a file. Without
// it an object cannot be read by part number, which beats losing the upload.
//
// A file that was put below the gateway by hand has no ETag. It gets one made
// of inode, size and time of change of the data, so that readers can tell its
// versions apart.
type xattrStore struct {
	meta.XattrMeta
}

var _ meta.MetadataStorer = xattrStore{}

func (s xattrStore) StoreAttribute(f *os.File, bucket, object, attribute string, value []byte) error {
	err := s.XattrMeta.StoreAttribute(f, bucket, object, attribute, value)
	if err != nil && attribute == partTableAttr {
		slog.Debug("the table of parts does not fit the extended attributes",
			slog.String("bucket", bucket), slog.String("key", object), slog.Int("bytes", len(value)))
		return nil
	}
	return err
}

func (s xattrStore) RetrieveAttribute(f *os.File, bucket, object, attribute string) ([]byte, error) {
	b, err := s.XattrMeta.RetrieveAttribute(f, bucket, object, attribute)
	if attribute != etagAttr || !errors.Is(err, meta.ErrNoSuchKey) {
		return b, err
	}
	var fi fs.FileInfo
	var statErr error
	if f != nil {
		fi, statErr = f.Stat()
	} else {
		fi, statErr = os.Stat(filepath.Join(bucket, object))
	}
	// A directory without ETag is one that nobody put as an object.
	if statErr != nil || !fi.Mode().IsRegular() {
		return b, err
	}
	return []byte(statETag(fi)), nil
}

// statETag is the ETag of a file that versitygw did not write, in quotes. The
// dash tells clients, as for multipart uploads, that it is no MD5.
func statETag(fi fs.FileInfo) string {
	return fmt.Sprintf(`"%016x%016x-%x"`, fi.ModTime().UnixNano(), inode(fi), fi.Size())
}
