package store

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// cleanAWS hides what the machine has of AWS settings.
func cleanAWS(t *testing.T) (home string) {
	t.Helper()
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "AWS_") {
			t.Setenv(name, "")
		}
	}
	home = t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	return home
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestEndpointAndRegion(t *testing.T) {
	home := cleanAWS(t)
	resolve := func(o Options) Config {
		t.Helper()
		c, err := o.Resolve()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	want := func(c Config, endpoint, region string) {
		t.Helper()
		if c.Endpoint.String() != endpoint || c.Region != region {
			t.Errorf("got %s in %s, want %s in %s", c.Endpoint, c.Region, endpoint, region)
		}
	}
	want(resolve(Options{}), "https://s3.amazonaws.com", "us-east-1")
	writeFile(t, filepath.Join(home, ".aws", "config"), "[default]\nregion = eu-one\n[profile other]\nregion = eu-two\n")
	want(resolve(Options{}), "https://s3.amazonaws.com", "eu-one")
	want(resolve(Options{Profile: "other"}), "https://s3.amazonaws.com", "eu-two")
	t.Setenv("AWS_PROFILE", "other")
	want(resolve(Options{}), "https://s3.amazonaws.com", "eu-two")
	t.Setenv("AWS_DEFAULT_REGION", "eu-three")
	want(resolve(Options{}), "https://s3.amazonaws.com", "eu-three")
	t.Setenv("AWS_REGION", "eu-four")
	want(resolve(Options{}), "https://s3.amazonaws.com", "eu-four")
	want(resolve(Options{Region: "eu-five"}), "https://s3.amazonaws.com", "eu-five")
	t.Setenv("AWS_ENDPOINT_URL", "http://one:1")
	want(resolve(Options{}), "http://one:1", "eu-four")
	t.Setenv("AWS_ENDPOINT_URL_S3", "http://two:2/")
	want(resolve(Options{}), "http://two:2", "eu-four")
	want(resolve(Options{Endpoint: "three:3"}), "https://three:3", "eu-four")
}

func TestCredentialsChain(t *testing.T) {
	role := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			fmt.Fprint(w, "session-token")
			return
		}
		if strings.HasSuffix(r.URL.Path, "/security-credentials/") {
			fmt.Fprint(w, "the-role")
			return
		}
		json.NewEncoder(w).Encode(map[string]any{
			"Code": "Success", "AccessKeyId": "ROLE", "SecretAccessKey": "s", "Token": "t", "Expiration": time.Now().Add(time.Hour),
		})
	}))
	defer role.Close()
	type setting = map[string]string
	for name, c := range map[string]struct {
		env     setting
		files   setting
		profile string
		key     string // access key
		source  string
	}{
		"environment":   {setting{"AWS_ACCESS_KEY_ID": "ENV", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t"}, nil, "", "ENV", "environment"},
		"shared file":   {nil, setting{".aws/credentials": "[default]\naws_access_key_id=FILE\naws_secret_access_key=s\n"}, "", "FILE", `profile "default" of the shared files`},
		"config file":   {nil, setting{".aws/config": "[profile p]\naws_access_key_id=CONF\naws_secret_access_key=s\n"}, "p", "CONF", `profile "p" of the shared files`},
		"AWS_PROFILE":   {setting{"AWS_PROFILE": "p"}, setting{".aws/credentials": "[p]\naws_access_key_id=FILE\naws_secret_access_key=s\n"}, "", "FILE", `profile "p" of the shared files`},
		"named profile": {setting{"AWS_ACCESS_KEY_ID": "ENV", "AWS_SECRET_ACCESS_KEY": "s"}, setting{".aws/credentials": "[p]\naws_access_key_id=FILE\naws_secret_access_key=s\n"}, "p", "FILE", `profile "p" of the shared files`},
		"container":     {setting{"AWS_CONTAINER_CREDENTIALS_FULL_URI": role.URL + "/creds"}, nil, "", "ROLE", "container role"},
		"instance":      {setting{"AWS_EC2_METADATA_DISABLED": "", "AWS_EC2_METADATA_SERVICE_ENDPOINT": role.URL}, nil, "", "ROLE", "instance role"},
	} {
		t.Run(name, func(t *testing.T) {
			home := cleanAWS(t)
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			for k, v := range c.files {
				writeFile(t, filepath.Join(home, k), v)
			}
			cfg, err := Options{Profile: c.profile}.Resolve()
			if err != nil {
				t.Fatal(err)
			}
			if got := cfg.CredentialsSource(); got != "none yet" {
				t.Errorf("source before use: %q", got)
			}
			v, err := cfg.Retrieve(context.Background())
			if err != nil || v.AccessKeyID != c.key || cfg.CredentialsSource() != c.source {
				t.Errorf("got %s from %s, %v; want %s from %s", v.AccessKeyID, cfg.CredentialsSource(), err, c.key, c.source)
			}
		})
	}
}

// Without credentials nothing is sent, and one sentence says where they were
// looked for, with reasons only where there was something.
func TestNoCredentials(t *testing.T) {
	role := httptest.NewServer(http.NotFoundHandler())
	role.Close()
	for name, c := range map[string]struct {
		files map[string]string
		env   map[string]string
		want  string
	}{
		"nothing":       {want: `no credentials found (looked at environment; profile "default" of the shared files)`},
		"no instance":   {env: map[string]string{"AWS_EC2_METADATA_DISABLED": "", "AWS_EC2_METADATA_SERVICE_ENDPOINT": role.URL}, want: `no credentials found (looked at environment; profile "default" of the shared files; instance role)`},
		"other profile": {files: map[string]string{".aws/config": "[profile p]\nregion=x\n"}, want: `no credentials found (looked at environment; profile "default" of the shared files)`},
		"half a pair":   {files: map[string]string{".aws/credentials": "[default]\naws_access_key_id=A\n"}, want: `no credentials found (looked at environment; profile "default" of the shared files: profile has partial static credentials: aws_access_key_id and aws_secret_access_key must both be set)`},
	} {
		t.Run(name, func(t *testing.T) {
			home := cleanAWS(t)
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			for k, v := range c.files {
				writeFile(t, filepath.Join(home, k), v)
			}
			s, err := Open(Options{Endpoint: "http://127.0.0.1:1"})
			if err != nil {
				t.Fatal(err)
			}
			_, err = s.List(context.Background(), ListRequest{Bucket: "bucket"})
			wantKind(t, err, ErrBadCredentials)
			wantKind(t, err, ErrNoCredentials)
			if got := err.Error(); got != "List s3://bucket: "+c.want {
				t.Errorf("%s\nwant %s", got, c.want)
			}
		})
	}
}

// Other credentials never step in for a profile that was asked for.
func TestProfileThatDoesNotExist(t *testing.T) {
	home := cleanAWS(t)
	t.Setenv("AWS_ACCESS_KEY_ID", "ENV")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "s")
	refused := func(o Options) {
		t.Helper()
		_, err := o.Resolve()
		want := fmt.Sprintf("no profile %q in %s or %s", "nosuch", filepath.Join(home, ".aws/credentials"), filepath.Join(home, ".aws/config"))
		if err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		if _, err := Open(o); err == nil {
			t.Error("opened")
		}
	}
	refused(Options{Profile: "nosuch"})
	refused(Options{Profile: "nosuch", Region: "us-east-1"})
	writeFile(t, filepath.Join(home, ".aws", "config"), "[profile other]\nregion = eu-two\n")
	refused(Options{Profile: "nosuch"})
	t.Setenv("AWS_PROFILE", "nosuch")
	refused(Options{})
	if _, err := (Options{Profile: "other"}).Resolve(); err != nil {
		t.Error(err)
	}
	if _, err := (Options{Credentials: credentials.NewStaticV4("a", "s", "")}).Resolve(); err != nil {
		t.Errorf("given credentials need no profile: %v", err)
	}
}

func TestSharedFilesAreReadAgain(t *testing.T) {
	path := filepath.Join(cleanAWS(t), "creds")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", path)
	text := "[default]\naws_access_key_id=%s\naws_secret_access_key=s\n"
	writeFile(t, path, fmt.Sprintf(text, "FIRST"))
	cfg, err := Options{}.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	get := func() string {
		t.Helper()
		v, err := cfg.Retrieve(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return v.AccessKeyID
	}
	if got := get(); got != "FIRST" {
		t.Fatalf("got %s", got)
	}
	writeFile(t, path, fmt.Sprintf(text, "THE-SECOND"))
	if got := get(); got != "FIRST" {
		t.Errorf("the files are read for every request: got %s", got)
	}
	cfg.Credentials.Expire()
	if got := get(); got != "THE-SECOND" {
		t.Errorf("got %s after a rejection", got)
	}

	f := &sharedFiles{}
	if _, err := f.Retrieve(); err != nil {
		t.Fatal(err)
	}
	f.looked = f.looked.Add(-2 * fileCheckEvery)
	if f.IsExpired() {
		t.Error("expired though nothing changed")
	}
	writeFile(t, path, fmt.Sprintf(text, "THIRD"))
	f.looked = f.looked.Add(-2 * fileCheckEvery)
	if !f.IsExpired() {
		t.Error("the change is not seen")
	}
}
