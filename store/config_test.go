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

// Without credentials nothing is sent, and the error says where they were looked for.
func TestNoCredentials(t *testing.T) {
	cleanAWS(t)
	s, err := Open(Options{Endpoint: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Buckets(context.Background())
	wantKind(t, err, ErrBadCredentials)
	if msg := err.Error(); !strings.Contains(msg, "environment") || !strings.Contains(msg, "shared files") {
		t.Errorf("%v does not say where", err)
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
