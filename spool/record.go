package spool

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"time"
)

// State is what has become of a file's content.
type State string

const (
	Written State = "written" // to be stored
	Lost    State = "lost"    // another writer was first
	Stored  State = "stored"  // only Uploads are left to abort
)

// Upload is a multipart upload under way.
type Upload struct {
	Bucket, Key string
	ID          string    // "" until the server has told it
	Begun       time.Time // before the server was asked
}

// Record says what the content of a spool file is meant to become.
type Record struct {
	Bucket, Key string
	// Base is the ETag of the object the content replaces, "" for none. OrAbsent
	// accepts that there is none although Base names one.
	Base        string
	OrAbsent    bool
	Meta        map[string]string
	ContentType string
	State       State
	Cause       string // why it is not stored, for people
	Uploads     []Upload

	// Set by the package.
	Made    time.Time // when the record was written
	Boot    string    // boot of the machine it was written in
	Durable bool      // content and record reached the disk
}

// maxRecord is the largest encoded record, bytes. Keys and metadata are bounded
// by S3, and uploads that cannot be aborted are few.
const maxRecord = 1 << 20

// magic begins every record, with the version of the format.
const magic = "s3rdmafs-spool 1 "

// noRecord stands in place of a record where there is none.
const noRecord = magic + "none\n"

var (
	errNoRecord = errors.New("no record")
	errEmpty    = errors.New("empty")
)

// ErrDamaged is wrapped by errors of records that cannot be understood.
var ErrDamaged = errors.New("damaged spool record")

// text is a string of any bytes in JSON.
type text string

func (t text) MarshalText() ([]byte, error) { return []byte(url.PathEscape(string(t))), nil }

func (t *text) UnmarshalText(b []byte) error {
	s, err := url.PathUnescape(string(b))
	*t = text(s)
	return err
}

// wireRecord is the JSON form of Record. Fields may be added only with a new
// version in magic.
type wireRecord struct {
	Bucket      text         `json:"bucket"`
	Key         text         `json:"key"`
	Base        text         `json:"base,omitempty"`
	OrAbsent    bool         `json:"or_absent,omitempty"`
	Meta        [][2]text    `json:"meta,omitempty"` // in order
	ContentType text         `json:"content_type,omitempty"`
	State       State        `json:"state"`
	Cause       text         `json:"cause,omitempty"`
	Uploads     []wireUpload `json:"uploads,omitempty"`
	Made        time.Time    `json:"made"`
	Boot        text         `json:"boot"`
	Durable     bool         `json:"durable,omitempty"`
}

type wireUpload struct {
	Bucket text      `json:"bucket"`
	Key    text      `json:"key"`
	ID     text      `json:"id,omitempty"`
	Begun  time.Time `json:"begun"`
}

// encode is one line with magic and checksum, and one of JSON. What may follow
// from a longer record before means nothing.
func (r Record) encode() ([]byte, error) {
	w := wireRecord{
		Bucket: text(r.Bucket), Key: text(r.Key), Base: text(r.Base), OrAbsent: r.OrAbsent,
		ContentType: text(r.ContentType), State: r.State, Cause: text(r.Cause),
		Made: r.Made, Boot: text(r.Boot), Durable: r.Durable,
	}
	for _, k := range slices.Sorted(maps.Keys(r.Meta)) {
		w.Meta = append(w.Meta, [2]text{text(k), text(r.Meta[k])})
	}
	for _, u := range r.Uploads {
		w.Uploads = append(w.Uploads, wireUpload{text(u.Bucket), text(u.Key), text(u.ID), u.Begun})
	}
	body, err := json.Marshal(w)
	if err != nil {
		return nil, fmt.Errorf("spool record of %q: %w", r.Key, err)
	}
	if len(body) > maxRecord/2 {
		return nil, fmt.Errorf("spool record of %q: %d bytes", r.Key, len(body))
	}
	sum := sha256.Sum256(body)
	return fmt.Appendf(nil, "%s%x\n%s\n", magic, sum, body), nil
}

// decode reads what encode wrote. Errors are errNoRecord or wrap ErrDamaged.
func decode(b []byte) (Record, error) {
	damaged := func(err error) (Record, error) { return Record{}, fmt.Errorf("%w: %w", ErrDamaged, err) }
	if bytes.HasPrefix(b, []byte(noRecord)) {
		return Record{}, errNoRecord
	}
	head, rest, ok := bytes.Cut(b, []byte("\n"))
	sum, known := bytes.CutPrefix(head, []byte(magic))
	switch {
	case len(b) == 0:
		return damaged(errEmpty)
	case !ok || !known:
		return damaged(errors.New("no record of this version"))
	}
	body, _, ok := bytes.Cut(rest, []byte("\n"))
	if !ok {
		return damaged(errors.New("cut off"))
	}
	if want := sha256.Sum256(body); hex.EncodeToString(want[:]) != string(sum) {
		return damaged(errors.New("checksum does not match"))
	}
	var w wireRecord
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&w); err != nil {
		return damaged(err)
	}
	r := Record{
		Bucket: string(w.Bucket), Key: string(w.Key), Base: string(w.Base), OrAbsent: w.OrAbsent,
		ContentType: string(w.ContentType), State: w.State, Cause: string(w.Cause),
		Made: w.Made, Boot: string(w.Boot), Durable: w.Durable,
	}
	for _, kv := range w.Meta {
		if r.Meta == nil {
			r.Meta = make(map[string]string, len(w.Meta))
		}
		r.Meta[string(kv[0])] = string(kv[1])
	}
	for _, u := range w.Uploads {
		r.Uploads = append(r.Uploads, Upload{string(u.Bucket), string(u.Key), string(u.ID), u.Begun})
	}
	switch {
	case r.State != Written && r.State != Lost && r.State != Stored:
		return damaged(fmt.Errorf("unknown state %q", r.State))
	case r.Bucket == "" || r.Key == "":
		return damaged(errors.New("no key"))
	}
	return r, nil
}
