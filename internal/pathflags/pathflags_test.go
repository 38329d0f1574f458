package pathflags

import (
	"reflect"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"s3rdmafs/verbs"
	"s3rdmafs/verbs/provider"
)

func TestFlags(t *testing.T) {
	index := 3
	for _, c := range []struct {
		args []string
		want provider.Options
		err  string // else
	}{
		{nil, provider.Options{}, ""},
		{[]string{"--rdma-port", "2", "--gid-index", "3", "--path-mtu", "1024", "--traffic-class", "106", "--service-level", "3"},
			provider.Options{Port: 2, GIDIndex: &index, PathMTU: verbs.MTU1024, TrafficClass: 106, SL: 3}, ""},
		{[]string{"--path-mtu", "1500"}, provider.Options{}, `"1500" is not a path MTU`},
		{[]string{"--path-mtu", "big"}, provider.Options{}, `"big" is not a path MTU`},
		{[]string{"--service-level", "16"}, provider.Options{}, "--service-level is 0 to 15"},
		{[]string{"--gid-index=-1"}, provider.Options{}, "--gid-index counts from 0"},
		{[]string{"--traffic-class", "256"}, provider.Options{}, "traffic-class"},
	} {
		var cli struct{ Flags }
		parser, err := kong.New(&cli)
		if err != nil {
			t.Fatal(err)
		}
		_, err = parser.Parse(c.args)
		switch {
		case c.err == "" && err != nil, c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%v: error %v, want %q", c.args, err, c.err)
		case err == nil && !reflect.DeepEqual(cli.Options(), c.want):
			t.Errorf("%v: %+v, want %+v", c.args, cli.Options(), c.want)
		}
	}
}
