package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// metadataClient asks container and instance endpoints. They are near or not
// there at all, so a host without one is noticed soon; no proxy is near them.
var metadataClient = &http.Client{
	Timeout: 10 * time.Second,
	Transport: &http.Transport{
		DialContext:           (&net.Dialer{Timeout: 2 * time.Second}).DialContext,
		ResponseHeaderTimeout: 5 * time.Second,
	},
}

// stsClient asks the token service, which may be behind a proxy.
var stsClient = &http.Client{
	Timeout: 30 * time.Second,
	Transport: &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
	},
}

type namedProvider struct {
	name string
	credentials.Provider
}

// chain asks its providers in order and stays with the first that answers. Unlike
// minio's it does not turn "none" into anonymous requests and keeps the reasons.
type chain struct {
	providers []namedProvider

	mu   sync.Mutex
	curr *namedProvider
}

// standardChain is the order of the AWS SDKs.
func standardChain(profile string) *chain {
	env := namedProvider{"environment", &credentials.EnvAWS{}}
	name := profile
	setDefault(&name, os.Getenv("AWS_PROFILE"))
	setDefault(&name, "default")
	files := namedProvider{fmt.Sprintf("profile %q of the shared files", name), &sharedFiles{FileAWSCredentials: credentials.FileAWSCredentials{Profile: name}}}

	c := &chain{}
	if profile != "" {
		c.providers = append(c.providers, files, env)
	} else {
		c.providers = append(c.providers, env)
	}
	if os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE") != "" {
		c.providers = append(c.providers, namedProvider{"web identity", &credentials.IAM{Client: stsClient}})
	}
	if profile == "" {
		c.providers = append(c.providers, files)
	}
	switch {
	case os.Getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") != "" || os.Getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI") != "":
		c.providers = append(c.providers, namedProvider{"container role", &credentials.IAM{Client: metadataClient}})
	case !strings.EqualFold(os.Getenv("AWS_EC2_METADATA_DISABLED"), "true"):
		c.providers = append(c.providers, namedProvider{"instance role", &credentials.IAM{
			Client: metadataClient, Endpoint: os.Getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT"),
		}})
	}
	return c
}

// RetrieveWithCredContext implements credentials.Provider; credentials.Credentials
// calls it under its own lock.
func (c *chain) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	var looked []string
	for i := range c.providers {
		p := &c.providers[i]
		v, err := p.RetrieveWithCredContext(cc)
		if v.AccessKeyID != "" && v.SecretAccessKey != "" && err == nil {
			c.mu.Lock()
			c.curr = p
			c.mu.Unlock()
			return v, nil
		}
		if cc != nil && cc.Context != nil && cc.Context.Err() != nil {
			return credentials.Value{}, context.Cause(cc.Context)
		}
		place := p.name
		if err != nil && !isAbsence(err) {
			place = fmt.Sprintf("%s: %v", place, err)
		}
		looked = append(looked, place)
	}
	return credentials.Value{}, fmt.Errorf("%w (looked at %s)", ErrNoCredentials, strings.Join(looked, "; "))
}

// isAbsence reports whether a provider's error says no more than that there is
// nothing: no file, no such section in it, nobody at the address of an instance's
// metadata.
func isAbsence(err error) bool {
	var op *net.OpError
	return errors.Is(err, fs.ErrNotExist) || errors.As(err, &op) && op.Op == "dial" ||
		strings.HasPrefix(err.Error(), "section ") && strings.HasSuffix(err.Error(), " does not exist")
}

// Retrieve implements credentials.Provider.
func (c *chain) Retrieve() (credentials.Value, error) { return c.RetrieveWithCredContext(nil) }

// IsExpired implements credentials.Provider.
func (c *chain) IsExpired() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.curr == nil || c.curr.IsExpired()
}

// Source names the provider in use.
func (c *chain) Source() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.curr == nil {
		return "none yet"
	}
	return c.curr.name
}

// sharedFiles reads the files again when they changed: tools that rotate keys
// rewrite them, and nothing in them says when. Without it minio parses the files
// for every request.
type sharedFiles struct {
	credentials.FileAWSCredentials
	static bool // keys without an expiration were read
	seen   fileState
	looked time.Time
}

const fileCheckEvery = 5 * time.Second

type fileState [2]struct {
	mod  time.Time
	size int64
}

func stateOfFiles() (st fileState) {
	for i, p := range []string{sharedFile(credentialsFileEnv, "credentials"), sharedFile(configFileEnv, "config")} {
		if fi, err := os.Stat(p); err == nil {
			st[i].mod, st[i].size = fi.ModTime(), fi.Size()
		}
	}
	return st
}

func (f *sharedFiles) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	f.seen, f.looked = stateOfFiles(), time.Now()
	v, err := f.FileAWSCredentials.RetrieveWithCredContext(cc)
	f.static = err == nil && v.Expiration.IsZero()
	return v, err
}

func (f *sharedFiles) Retrieve() (credentials.Value, error) { return f.RetrieveWithCredContext(nil) }

// IsExpired is called before every request, hence the pause between looks.
func (f *sharedFiles) IsExpired() bool {
	if !f.static {
		return f.FileAWSCredentials.IsExpired()
	}
	if time.Since(f.looked) < fileCheckEvery {
		return false
	}
	f.looked = time.Now()
	return stateOfFiles() != f.seen
}
