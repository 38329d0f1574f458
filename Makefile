# The two commands of the README are `make demo` and `make test`.

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -X s3rdmafs/internal/version.Version=$(VERSION)
PKGS    := ./...

.PHONY: all build test test-long test-apps test-rdma demo check bench deps-run deps-test deps-apps clean

all: build

build:
	$(GO) build -ldflags '$(LDFLAGS)' -o bin/s3rdmafs ./cmd/s3rdmafs
	$(GO) build -ldflags '$(LDFLAGS)' -o bin/s3rdmagw ./cmd/s3rdmagw

# What a mount needs at run time, and what the tests need besides. Installed
# with apt-get where it is missing.
deps-run:
	@scripts/deps fuse3
deps-test:
	@scripts/deps fuse3 gcc libc6-dev libibverbs-dev attr git
deps-apps: deps-test
	@scripts/deps sqlite3 rsync vim perl patch python3 python3-venv zip unzip fio stress-ng dbench
	@scripts/deps "libpython$$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')-testsuite"

# KEEP=1 leaves gateway and mount running. TREE=DIR copies another tree,
# BIG=SIZE another size for the large file (default 1G).
demo: deps-run build
	@KEEP='$(KEEP)' TREE='$(TREE)' BIG='$(BIG)' scripts/demo

test: deps-test
	$(GO) test -race -timeout 20m $(PKGS)

# Longer runs of what `test` has in short form.
test-long: deps-test
	S3RDMAFS_LONG=1 $(GO) test -race -timeout 4h $(PKGS)

# Programs nobody here wrote, on a mount. ONLY='git|tar' runs some of them.
test-apps: deps-apps
	S3RDMAFS_APPS=1 $(GO) test -count=1 -v -timeout 90m -run 'TestPrograms$(if $(ONLY),/^($(ONLY))$$)' ./internal/apps

# On real verbs: Soft-RoCE in a virtual machine made of Debian packages, or with
# DEVICE=NAME a device of this host. QUICK=1 is a reduced form. See doc/TESTING.md.
test-rdma: deps-test
	@scripts/deps xz-utils
	@DEVICE='$(DEVICE)' QUICK='$(QUICK)' scripts/test-rdma

check: deps-test
	@unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then echo "gofmt needed: $$unformatted"; exit 1; fi
	$(GO) vet $(PKGS)
	$(GO) mod tidy -diff
	CGO_ENABLED=0 $(GO) build -o /dev/null ./cmd/s3rdmafs
	CGO_ENABLED=0 GOARCH=arm64 $(GO) build -o /dev/null ./cmd/s3rdmafs

bench: deps-test
	$(GO) test -run '^$$' -bench . -benchtime 1s ./verbs/... ./rc/... ./cache/... ./store/...

clean:
	rm -rf bin
