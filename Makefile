# trivet: `make demo` shows it, `make test` proves it.
SHELL := /bin/bash
GO ?= go
export CGO_ENABLED := 0

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT := $(shell git rev-parse --short=12 HEAD 2>/dev/null)
LDFLAGS := -s -w -X trivet/internal/build.Version=$(VERSION) -X trivet/internal/build.commit=$(COMMIT)

.PHONY: build gen check test test-unit test-system proof fuzz demo image bench deps clean

build: ## bin/trivet and bin/trivet-bench
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/trivet ./cmd/trivet
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/trivet-bench ./cmd/trivet-bench

gen: ## generated code; must leave a clean tree
	bash proto/gen.sh
	bash node/steal/bpf/build.sh

check: ## formatting, vet, staticcheck, dependency rules
	bash .ci/check

deps: ## Debian packages that generation and tests need (root only)
	bash .ci/deps

test: ## all tiers, at most 20 minutes on two cores
	bash .ci/test

proof: build ## the long proofs; results go to docs/proofs.md
	bash .ci/proof

fuzz: ## every fuzz target for FUZZTIME (5m)
	bash .ci/fuzz

image: build ## the image trivet:dev, for docker-compose
	DOCKER_BUILDKIT=0 docker build -q -t $${TRIVET_IMAGE:-trivet:dev} -f deploy/Dockerfile .

demo: build ## the guided main job
	bin/trivet demo

bench: build
	bin/trivet-bench failover

clean:
	rm -rf bin .trivet
