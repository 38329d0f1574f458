package spool

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// anyString is of any bytes: keys and metadata need not be UTF-8.
var anyString = rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })

func drawRecord(t *rapid.T) Record {
	name := rapid.Map(rapid.SliceOfN(rapid.Byte(), 1, -1), func(b []byte) string { return string(b) })
	at := func(label string) time.Time {
		return time.Unix(rapid.Int64Range(0, 1<<33).Draw(t, label), rapid.Int64Range(0, 999_999_999).Draw(t, label)).UTC()
	}
	r := Record{
		Bucket: name.Draw(t, "bucket"), Key: name.Draw(t, "key"), Base: anyString.Draw(t, "base"),
		OrAbsent: rapid.Bool().Draw(t, "or absent"), ContentType: anyString.Draw(t, "content type"),
		State: rapid.SampledFrom([]State{Written, Lost, Stored}).Draw(t, "state"), Cause: anyString.Draw(t, "cause"),
		Made: at("made"), Boot: anyString.Draw(t, "boot"), Durable: rapid.Bool().Draw(t, "durable"),
	}
	if m := rapid.MapOfN(anyString, anyString, 0, 5).Draw(t, "meta"); len(m) > 0 {
		r.Meta = m
	}
	for range rapid.IntRange(0, 3).Draw(t, "uploads") {
		r.Uploads = append(r.Uploads, Upload{name.Draw(t, "ubucket"), name.Draw(t, "ukey"), anyString.Draw(t, "id"), at("begun")})
	}
	return r
}

func TestRecordRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawRecord(t)
		b, err := want.encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := decode(b)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v became %+v, %v", want, got, err)
		}
	})
}

// Any change of a record shows.
func TestRecordDamageShows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, err := drawRecord(t).encode()
		if err != nil {
			t.Fatal(err)
		}
		i := rapid.IntRange(0, len(b)-1).Draw(t, "at")
		if rapid.Bool().Draw(t, "cut") {
			b = b[:i]
		} else {
			b[i] ^= byte(rapid.IntRange(1, 255).Draw(t, "flip"))
		}
		if r, err := decode(b); !errors.Is(err, ErrDamaged) {
			t.Fatalf("taken for %+v, %v", r, err)
		}
	})
}

func FuzzDecode(f *testing.F) {
	b, err := Record{Bucket: "b", Key: "k", State: Written, Uploads: []Upload{{Bucket: "b", Key: "k"}}}.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(magic))
	f.Add([]byte(noRecord))
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decode(b)
		if err != nil {
			if !errors.Is(err, ErrDamaged) && !errors.Is(err, errNoRecord) {
				t.Errorf("error is %v", err)
			}
			return
		}
		b, err = r.encode()
		if err != nil {
			t.Fatal(err)
		}
		if again, err := decode(b); err != nil || !reflect.DeepEqual(again, r) {
			t.Errorf("%+v became %+v, %v", r, again, err)
		}
	})
}
