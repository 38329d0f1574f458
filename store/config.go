package store

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"gopkg.in/ini.v1"
)

const (
	awsEndpoint   = "https://s3.amazonaws.com"
	defaultRegion = "us-east-1"
)

// Config is where requests go and how they are signed, after environment,
// files and defaults were looked at. Other clients of the same endpoint use it.
type Config struct {
	Endpoint    *url.URL // scheme and host only
	Region      string
	Credentials *credentials.Credentials

	source func() string
}

// Resolve fills in what o leaves open. It asks no server.
func (o Options) Resolve() (Config, error) {
	raw := o.Endpoint
	for _, name := range []string{"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"} {
		if raw == "" {
			raw = os.Getenv(name)
		}
	}
	u, err := parseEndpoint(raw)
	if err != nil {
		return Config{}, err
	}
	if err := o.checkProfile(); err != nil {
		return Config{}, err
	}
	c := Config{Endpoint: u, Region: o.Region, Credentials: o.Credentials}
	if c.Region == "" {
		if c.Region, err = regionFromOutside(o.Profile); err != nil {
			return Config{}, err
		}
	}
	if c.Credentials != nil {
		c.source = func() string { return "given by the caller" }
		return c, nil
	}
	chain := standardChain(o.Profile)
	c.Credentials = credentials.New(chain)
	c.source = chain.Source
	return c, nil
}

// Retrieve returns the credentials to sign with now, refreshed when they are
// about to expire. The error wraps ErrBadCredentials.
func (c Config) Retrieve(ctx context.Context) (credentials.Value, error) {
	v, err := c.Credentials.GetWithContext(&credentials.CredContext{Client: metadataClient, Context: ctx})
	if err != nil && !errors.Is(err, ErrBadCredentials) {
		err = fmt.Errorf("%w: %w", ErrBadCredentials, err)
	}
	return v, err
}

// CredentialsSource says in words where the credentials in use came from; never
// the credentials. It is "none yet" before the first request.
func (c Config) CredentialsSource() string { return c.source() }

// parseEndpoint accepts a URL without path, or host[:port].
func parseEndpoint(raw string) (*url.URL, error) {
	if raw == "" {
		raw = awsEndpoint
	}
	if !strings.Contains(raw, "://") {
		raw = "https://" + raw
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return nil, fmt.Errorf("endpoint %q: %w", raw, err)
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("endpoint %q: want http or https", raw)
	case u.Hostname() == "":
		return nil, fmt.Errorf("endpoint %q: no host", raw)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "":
		return nil, fmt.Errorf("endpoint %q: want only scheme and host", u.Redacted())
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host}, nil
}

// regionFromOutside looks where the AWS SDKs look.
func regionFromOutside(profile string) (string, error) {
	for _, name := range []string{"AWS_REGION", "AWS_DEFAULT_REGION"} {
		if r := os.Getenv(name); r != "" {
			return r, nil
		}
	}
	setDefault(&profile, os.Getenv("AWS_PROFILE"))
	setDefault(&profile, "default")
	sections, err := profileSections(profile)
	if err != nil {
		return "", err
	}
	for _, s := range sections {
		if r := s.Key("region").String(); r != "" {
			return r, nil
		}
	}
	return defaultRegion, nil
}

// checkProfile fails when a profile is asked for that neither file has: other
// credentials must not step in for it.
func (o Options) checkProfile() error {
	profile := o.Profile
	if o.Credentials == nil {
		setDefault(&profile, os.Getenv("AWS_PROFILE"))
	}
	if profile == "" {
		return nil
	}
	sections, err := profileSections(profile)
	if err == nil && len(sections) == 0 {
		err = fmt.Errorf("no profile %q in %s or %s", profile,
			sharedFile(credentialsFileEnv, "credentials"), sharedFile(configFileEnv, "config"))
	}
	return err
}

// Names of the variables that say where the two shared files are.
const (
	credentialsFileEnv = "AWS_SHARED_CREDENTIALS_FILE"
	configFileEnv      = "AWS_CONFIG_FILE"
)

// profileSections are what the shared files have on a profile, in order of
// precedence.
func profileSections(profile string) ([]*ini.Section, error) {
	var found []*ini.Section
	for _, f := range []struct {
		path     string
		sections []string
	}{
		{sharedFile(credentialsFileEnv, "credentials"), []string{profile}},
		{sharedFile(configFileEnv, "config"), []string{"profile " + profile, profile}},
	} {
		file, err := ini.LooseLoad(f.path)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", f.path, err)
		}
		for _, name := range f.sections {
			if s, err := file.GetSection(name); err == nil {
				found = append(found, s)
			}
		}
	}
	return found, nil
}

// sharedFile is the path of one of the two shared AWS files; "" without a home.
func sharedFile(env, name string) string {
	if p := os.Getenv(env); p != "" {
		return p
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".aws", name)
}
