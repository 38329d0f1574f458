package testenv

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"s3rdmafs/gateway"
)

// Root credentials of every gateway, and its region.
const (
	AccessKey = "TESTENVROOT"
	SecretKey = "testenv-root-secret"
	Region    = "us-east-1"
)

// Options describe a gateway for a test. The zero value is a plain S3 server
// on a new directory, without RC routes.
type Options struct {
	// RDMA gives the gateway the software device and its RC routes. Limits may
	// be set in Gateway.RDMA, whose Device must be nil.
	RDMA bool
	// Marker keeps the RC routes of a gateway without RDMA, which answer that
	// they are unsupported.
	Marker bool
	// InProcess runs the gateway inside the test; see the package comment.
	InProcess bool
	// Gateway is taken over as it is, apart from what Start fills in where it
	// is empty: Dir, AccessKey, SecretKey, Region.
	Gateway gateway.Options
}

// Env is a running gateway. Its address stays the same over a restart.
type Env struct {
	Endpoint  string // URL
	Region    string
	AccessKey string
	SecretKey string
	Dir       string // of the buckets; "" with the s3 backend
	// Gateway is nil unless the gateway runs in the test's process.
	Gateway *gateway.Gateway

	t      testing.TB
	config childConfig
	inProc bool
	cmd    *exec.Cmd
	stdin  io.Closer
	exited chan struct{}
	log    *os.File
	served chan error
	device func() error // closes the device of a gateway in this process
}

var buckets atomic.Int64

// Start starts a gateway that ends with the test.
func Start(t testing.TB, o Options) *Env {
	t.Helper()
	g := o.Gateway
	if g.Dir == "" && g.Backend != gateway.BackendS3 {
		g.Dir = t.TempDir()
	}
	if g.AccessKey == "" {
		g.AccessKey, g.SecretKey = AccessKey, SecretKey
	}
	if g.Region == "" {
		g.Region = Region
	}
	g.NoRCRoutes = !o.RDMA && !o.Marker
	e := &Env{
		Region:    g.Region,
		AccessKey: g.AccessKey,
		SecretKey: g.SecretKey,
		Dir:       g.Dir,
		t:         t,
		config:    childConfig{Gateway: g, Listen: "127.0.0.1:0", RDMA: o.RDMA},
		inProc:    o.InProcess,
	}
	if err := e.start(); err != nil {
		t.Fatalf("gateway: %v", err)
	}
	t.Cleanup(func() {
		e.Stop()
		if e.log != nil {
			if t.Failed() {
				e.dumpLog()
			}
			e.log.Close()
		}
	})
	return e
}

// start starts the gateway on e.config.Listen and sets Endpoint.
func (e *Env) start() error {
	var addr, scheme string
	if e.inProc {
		c := e.config
		c.Gateway.Logger = slog.New(slog.NewTextHandler(e.t.Output(), nil))
		g, ln, closeDevice, err := open(c)
		if err != nil {
			return err
		}
		e.Gateway, e.served, e.device = g, make(chan error, 1), closeDevice
		go func() { e.served <- g.Serve(ln) }()
		addr = ln.Addr().String()
	} else {
		var err error
		if addr, err = e.startProcess(); err != nil {
			return err
		}
	}
	scheme = "http"
	if e.config.Gateway.CertFile != "" {
		scheme = "https"
	}
	e.Endpoint = scheme + "://" + addr
	e.config.Listen = addr
	return nil
}

func (e *Env) startProcess() (addr string, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if e.log == nil {
		if e.log, err = os.Create(filepath.Join(e.t.TempDir(), "gateway.log")); err != nil {
			return "", err
		}
	}
	config, err := json.Marshal(e.config)
	if err != nil {
		return "", err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"="+string(config))
	cmd.Stderr = e.log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return "", err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	var ready childReady
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		// versitygw prints lines of its own.
		if json.Unmarshal(lines.Bytes(), &ready) == nil {
			break
		}
	}
	if ready.Addr == "" {
		stdin.Close()
		cmd.Wait()
		e.dumpLog()
		return "", fmt.Errorf("process did not start: %s", ready.Err)
	}
	exited := make(chan struct{})
	go func() {
		io.Copy(io.Discard, stdout)
		cmd.Wait()
		close(exited)
	}()
	e.cmd, e.stdin, e.exited = cmd, stdin, exited
	return ready.Addr, nil
}

// Stop ends the gateway gracefully and returns when it is gone. It does
// nothing to one that is stopped or killed.
func (e *Env) Stop() {
	e.t.Helper()
	if e.Gateway != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		if err := errors.Join(e.Gateway.Close(ctx), e.device()); err != nil {
			e.t.Errorf("gateway: close: %v", err)
		}
		if err := <-e.served; err != nil {
			e.t.Errorf("gateway: serve: %v", err)
		}
		e.Gateway = nil
		return
	}
	if e.cmd == nil {
		return
	}
	e.stdin.Close()
	select {
	case <-e.exited:
	case <-time.After(2 * closeTimeout):
		e.t.Errorf("gateway: did not end in time")
		e.cmd.Process.Kill()
		<-e.exited
	}
	if code := e.cmd.ProcessState.ExitCode(); code != 0 {
		e.t.Errorf("gateway: ended with exit code %d", code)
	}
	e.cmd = nil
}

// Kill ends the gateway's process with SIGKILL and returns when it is gone.
func (e *Env) Kill() {
	e.t.Helper()
	if e.cmd == nil {
		e.t.Fatal("gateway: no process of its own to kill")
	}
	if err := e.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		e.t.Errorf("gateway: %v", err)
	}
	<-e.exited
	e.stdin.Close()
	e.cmd = nil
}

// Restart starts a stopped or killed gateway again, on the same address and
// directory; one that runs is stopped first.
func (e *Env) Restart() {
	e.t.Helper()
	e.Stop()
	if err := e.start(); err != nil {
		e.t.Fatalf("gateway: restart: %v", err)
	}
}

// PID is the process id of the gateway, 0 when it runs in the test's process
// or not at all.
func (e *Env) PID() int {
	if e.cmd == nil {
		return 0
	}
	return e.cmd.Process.Pid
}

func (e *Env) dumpLog() {
	b, err := os.ReadFile(e.log.Name())
	if err == nil && len(bytes.TrimSpace(b)) > 0 {
		e.t.Logf("log of the gateway:\n%s", b)
	}
}

// Minio returns a client with root's credentials.
func (e *Env) Minio() *minio.Client {
	e.t.Helper()
	return e.MinioAs(e.AccessKey, e.SecretKey)
}

// MinioAs returns a client with the given credentials.
func (e *Env) MinioAs(accessKey, secretKey string) *minio.Client {
	e.t.Helper()
	u, err := url.Parse(e.Endpoint)
	if err != nil {
		e.t.Fatal(err)
	}
	c, err := minio.New(u.Host, &minio.Options{
		Creds:  credentials.NewStaticV4(accessKey, secretKey, ""),
		Secure: u.Scheme == "https",
		Region: e.Region,
		// A test wants to see the first error.
		MaxRetries: 1,
	})
	if err != nil {
		e.t.Fatal(err)
	}
	return c
}

// S3 returns a client of the AWS SDK with root's credentials.
func (e *Env) S3() *s3.Client { return e.S3With(http.DefaultClient) }

// S3With returns a client of the AWS SDK with root's credentials that sends
// its requests with c.
func (e *Env) S3With(c *http.Client) *s3.Client {
	return s3.New(s3.Options{
		HTTPClient:   c,
		Retryer:      aws.NopRetryer{},
		BaseEndpoint: aws.String(e.Endpoint),
		Region:       e.Region,
		UsePathStyle: true,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: e.AccessKey, SecretAccessKey: e.SecretKey}, nil
		}),
	})
}

// NewBucket creates a bucket; an empty name stands for a new one of its own.
func (e *Env) NewBucket(name string) string {
	e.t.Helper()
	if name == "" {
		name = fmt.Sprintf("bucket-%d", buckets.Add(1))
	}
	if err := e.Minio().MakeBucket(context.Background(), name, minio.MakeBucketOptions{Region: e.Region}); err != nil {
		e.t.Fatalf("gateway: make bucket %s: %v", name, err)
	}
	return name
}

// Put stores an object as root.
func (e *Env) Put(bucket, key string, data []byte) {
	e.t.Helper()
	_, err := e.Minio().PutObject(context.Background(), bucket, key, bytes.NewReader(data), int64(len(data)),
		minio.PutObjectOptions{ContentType: "application/octet-stream"})
	if err != nil {
		e.t.Fatalf("gateway: put %s/%s: %v", bucket, key, err)
	}
}

// Get reads a whole object as root.
func (e *Env) Get(bucket, key string) []byte {
	e.t.Helper()
	o, err := e.Minio().GetObject(context.Background(), bucket, key, minio.GetObjectOptions{})
	if err != nil {
		e.t.Fatalf("gateway: get %s/%s: %v", bucket, key, err)
	}
	defer o.Close()
	b, err := io.ReadAll(o)
	if err != nil {
		e.t.Fatalf("gateway: get %s/%s: %v", bucket, key, err)
	}
	return b
}
