package provider

import (
	"reflect"
	"testing"

	"s3rdmafs/verbs"
)

func TestParseSpecs(t *testing.T) {
	o := Options{Port: 2, PathMTU: verbs.MTU1024}
	other := o
	other.Port = 1
	for list, want := range map[string][]Spec{
		"auto":             {{"auto", o}},
		"mlx5_0:1":         {{"mlx5_0", other}},
		"mlx5_0:1, mlx5_1": {{"mlx5_0", other}, {"mlx5_1", o}},
		"mlx5_0:0":         nil,
		"mlx5_0:":          nil,
		"mlx5_0:256":       nil,
		"mlx5_0,mlx5_1:x":  nil,
	} {
		got, err := ParseSpecs(list, o)
		if (err == nil) != (want != nil) || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v; want %+v", list, got, err, want)
		}
	}
}
