package main

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"s3rdmafs/internal/testenv"
	"s3rdmafs/rc"
)

// asProgram makes the test binary the program itself.
const asProgram = "S3RDMAGW_TEST_PROGRAM"

const (
	accessKey = "TESTKEY"
	secretKey = "test-secret"
	patience  = 30 * time.Second
)

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// program is a command that runs s3rdmagw with root credentials.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = []string{asProgram + "=1", "AWS_ACCESS_KEY_ID=" + accessKey, "AWS_SECRET_ACCESS_KEY=" + secretKey, "TMPDIR=" + t.TempDir()}
	return cmd
}

// start runs s3rdmagw until the end of the test and returns its URL.
func start(t *testing.T, args ...string) (endpoint string, cmd *exec.Cmd, log *bytes.Buffer) {
	t.Helper()
	return startWith(t, func(*exec.Cmd) {}, args...)
}

// startWith is start with the command changed by edit.
func startWith(t *testing.T, edit func(*exec.Cmd), args ...string) (endpoint string, cmd *exec.Cmd, log *bytes.Buffer) {
	t.Helper()
	cmd = program(t, append([]string{"--listen", "127.0.0.1:0"}, args...)...)
	edit(cmd)
	log = new(bytes.Buffer)
	cmd.Stderr = log
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if url, ok := strings.CutPrefix(lines.Text(), "s3rdmagw listening on "); ok {
			t.Cleanup(func() { cmd.Process.Kill() })
			return url, cmd, log
		}
	}
	cmd.Wait()
	t.Fatalf("not listening: %s", log)
	return "", nil, nil
}

// stop ends the program with a signal; it must end well and in time.
func stop(t *testing.T, cmd *exec.Cmd, sig os.Signal, log *bytes.Buffer) {
	t.Helper()
	if err := cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("after %v: %v\n%s", sig, err, log)
		}
	case <-time.After(patience):
		t.Errorf("still there after %v", sig)
	}
}

func client(t *testing.T, endpoint string, transport http.RoundTripper) *minio.Client {
	t.Helper()
	u, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	c, err := minio.New(u.Host, &minio.Options{
		Creds:     credentials.NewStaticV4(accessKey, secretKey, ""),
		Secure:    u.Scheme == "https",
		Region:    "us-east-1",
		Transport: transport,
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// On any machine the program serves a directory, moves bytes by RDMA, and ends
// well on both signals.
func TestServeDirectory(t *testing.T) {
	for _, sig := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		dir := t.TempDir()
		endpoint, cmd, log := start(t, "--dir", dir, "--bucket", "first", "--bucket", "second", "--device", "shm", "--staging-size", "64MiB")
		e := &testenv.Env{Endpoint: endpoint, Region: "us-east-1"}
		r := testenv.NewRDMA(t)
		c := r.Client(e, accessKey, secretKey, nil)
		want := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		if _, err := c.Put(t.Context(), rc.PutRequest{Bucket: "first", Key: "dir/key", Src: r.Segment(len(want), want)}); err != nil {
			t.Fatalf("%v\n%s", err, log)
		}
		if got, err := os.ReadFile(filepath.Join(dir, "first", "dir", "key")); err != nil || !bytes.Equal(got, want) {
			t.Errorf("file of the object: %d bytes, %v", len(got), err)
		}
		if ok, err := client(t, endpoint, nil).BucketExists(t.Context(), "second"); !ok || err != nil {
			t.Errorf("second bucket: %v, %v", ok, err)
		}
		stop(t, cmd, sig, log)
		if s := log.String(); !strings.Contains(s, "device=shm") || !strings.Contains(s, `msg="RDMA limits"`) || !strings.Contains(s, "cut=nothing") || strings.Contains(s, secretKey) {
			t.Errorf("log: %s", s)
		}
	}
}

func TestAutoDeviceOnLoopback(t *testing.T) {
	_, cmd, log := start(t, "--dir", t.TempDir())
	stop(t, cmd, syscall.SIGTERM, log)
	if strings.Contains(log.String(), "device=none") {
		t.Errorf("log: %s", log)
	}
}

func TestServeHTTPS(t *testing.T) {
	cert, key := certificate(t)
	endpoint, cmd, log := start(t, "--dir", t.TempDir(), "--bucket", "bucket", "--cert", cert, "--key", key, "--device", "none")
	if !strings.HasPrefix(endpoint, "https://") {
		t.Errorf("endpoint %s", endpoint)
	}
	pemBytes, err := os.ReadFile(cert)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pemBytes)
	c := client(t, endpoint, &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}})
	want := bytes.Repeat([]byte("x"), 300_000)
	if _, err := c.PutObject(t.Context(), "bucket", "key", bytes.NewReader(want), int64(len(want)), minio.PutObjectOptions{}); err != nil {
		t.Fatal(err)
	}
	o, err := c.GetObject(t.Context(), "bucket", "key", minio.GetObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(o); err != nil || !bytes.Equal(got, want) {
		t.Errorf("read back %d bytes, %v", len(got), err)
	}
	stop(t, cmd, syscall.SIGTERM, log)
}

// certificate makes a certificate for 127.0.0.1 that signs itself.
func certificate(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:         true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: der},
		keyFile:  {Type: "EC PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

// Each bad input is one clear line on standard error and a failing exit code.
func TestBadInput(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	cert, key := certificate(t)
	behind := testenv.Start(t, testenv.Options{}) // does not know the program's credentials
	tests := []struct {
		name string
		args []string
		env  []string // instead of the credentials
		want string
	}{
		{"no directory", nil, nil, "no directory given"},
		{"missing directory", []string{"--dir", filepath.Join(dir, "missing")}, nil, "no such file or directory"},
		{"directory is a file", []string{"--dir", file}, nil, "is not a directory"},
		{"address in use", []string{"--dir", dir, "--listen", taken.Addr().String()}, nil, "address already in use"},
		{"address is none", []string{"--dir", dir, "--listen", "nowhere"}, nil, "cannot listen"},
		{"no credentials", []string{"--dir", dir}, []string{"X=1"}, "AWS_ACCESS_KEY_ID"},
		{"no secret", []string{"--dir", dir}, []string{"AWS_ACCESS_KEY_ID=a"}, "AWS_SECRET_ACCESS_KEY"},
		{"unknown device", []string{"--dir", dir, "--device", "nosuch0"}, nil, "nosuch0"},
		{"no such GID", []string{"--dir", dir, "--device", "shm", "--gid-index", "9"}, nil, "no GID with index 9"},
		{"no such GID of a table of one", []string{"--dir", dir, "--device", "shm", "--gid-index", "77"}, nil, "no GID with index 77; the table has 0 (fd73:"},
		{"staging that holds nothing", []string{"--dir", dir, "--device", "shm", "--staging-size", "1KiB"}, nil, "--staging-size: 1.0 KiB are too few, it takes at least 1.0 MiB"},
		{"no such bucket name with profiles", []string{"--dir", dir, "--pprof", "127.0.0.1:0", "--bucket", "../bucket"}, nil, "not a valid bucket name"},
		{"no such port", []string{"--dir", dir, "--rdma-port", "2"}, nil, "no port 2"},
		{"path MTU that is none", []string{"--dir", dir, "--path-mtu", "1500"}, nil, "not a path MTU"},
		{"certificate without key", []string{"--dir", dir, "--cert", cert}, nil, "needed together"},
		{"certificate is none", []string{"--dir", dir, "--cert", file, "--key", key}, nil, "certificate " + file},
		{"missing certificate", []string{"--dir", dir, "--cert", file + ".pem", "--key", key}, nil, "no such file"},
		{"size is none", []string{"--dir", dir, "--staging-size", "much"}, nil, `"much" is not a size`},
		{"unknown backend", []string{"--dir", dir, "--backend", "tape"}, nil, "posix"},
		{"no backend endpoint", []string{"--backend", "s3"}, nil, "backend endpoint"},
		{"bucket that is no name", []string{"--dir", dir, "--bucket", "../bucket"}, nil, "not a valid bucket name"},
		{"bucket that is refused", []string{"--backend", "s3", "--backend-endpoint", behind.Endpoint, "--bucket", "bucket"}, nil, "bucket bucket: "},
		{"service behind is down", []string{"--backend", "s3", "--backend-endpoint", "http://127.0.0.1:1", "--bucket", "bucket"}, nil, "connection refused"},
		{"unknown flag", []string{"--no-such-flag"}, nil, "--no-such-flag"},
		{"log file in a missing directory", []string{"--dir", dir, "--log-file", file + "/log"}, nil, "log file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			args := tt.args
			if tt.name != "address in use" && tt.name != "address is none" {
				args = append([]string{"--listen", "127.0.0.1:0"}, args...)
			}
			cmd := program(t, args...)
			if tt.env != nil {
				cmd.Env = append([]string{asProgram + "=1"}, tt.env...)
			}
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			err := cmd.Run()
			said := strings.TrimSpace(stderr.String())
			if err == nil || cmd.ProcessState.ExitCode() < 1 {
				t.Errorf("ended with %v", err)
			}
			if !strings.HasPrefix(said, "s3rdmagw: ") || !strings.Contains(said, tt.want) || strings.Contains(said, "\n") {
				t.Errorf("said %q, want one line with %q", said, tt.want)
			}
		})
	}
}

// Standard output has the one line for scripts, and standard error the log, whatever
// comes in and whatever the libraries below print.
func TestNothingButTheLogIsPrinted(t *testing.T) {
	dir := t.TempDir()
	cmd := program(t, "--listen", "127.0.0.1:0", "--dir", dir, "--bucket", "bucket", "--device", "none", "--log-level", "debug")
	var log bytes.Buffer
	cmd.Stderr = &log
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	out := bufio.NewReader(stdout)
	first, err := out.ReadString('\n')
	endpoint, ok := strings.CutPrefix(strings.TrimSpace(first), "s3rdmagw listening on ")
	if err != nil || !ok {
		t.Fatalf("%q, %v", first, err)
	}
	addr := strings.TrimPrefix(endpoint, "http://")

	// What begins like TLS, and a client that breaks off in the middle of a request.
	for _, begin := range []string{"\x16\x03\x01 / HTTP/1.1\r\nHost: h\r\n\r\n", "GET / HTTP/1.1\r\nAuthorization: secret\r\nHost: "} {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, begin); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(begin, "\r\n\r\n") {
			io.Copy(io.Discard, c) // the answer
		}
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
	// An error of the file system that versitygw knows no S3 error for.
	if err := os.Symlink("loop", filepath.Join(dir, "bucket", "loop")); err != nil {
		t.Fatal(err)
	}
	once, err := minio.New(addr, &minio.Options{
		Creds: credentials.NewStaticV4(accessKey, secretKey, ""), Region: "us-east-1", MaxRetries: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := once.RemoveObject(t.Context(), "bucket", "loop/x", minio.RemoveObjectOptions{}); err == nil {
		t.Error("an object behind a loop of links is removed")
	}
	stop(t, cmd, syscall.SIGTERM, &log)
	rest, err := io.ReadAll(out)
	if len(rest) > 0 {
		t.Errorf("standard output goes on: %q, %v", rest, err)
	}
	if strings.Contains(log.String(), "secret") {
		t.Errorf("the log cites a request:\n%s", &log)
	}
	for line := range strings.Lines(log.String()) {
		if !strings.HasPrefix(line, "time=") {
			t.Errorf("standard error has %q", line)
		}
	}
	for _, want := range []string{
		`msg="request cannot be read" from=127.0.0.1:`, "perhaps TLS", "connection reset by peer",
		`level=ERROR msg="request failed" method=DELETE path=/bucket/loop/x request_id=`,
		`level=ERROR msg=versitygw says="stat object: stat bucket/loop/x: too many levels of symbolic links"`,
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log has no %q:\n%s", want, &log)
		}
	}
}

func TestVersion(t *testing.T) {
	out, err := program(t, "--version").Output()
	if err != nil || !strings.HasPrefix(string(out), "s3rdmagw ") {
		t.Errorf("%q, %v", out, err)
	}
}
