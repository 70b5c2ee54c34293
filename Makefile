# Everything a person does here often. `make help` lists it. Needed: Go and git; `make test` installs the rest by the
# system's package manager.

SHELL := /bin/bash
.DEFAULT_GOAL := help

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X main.version=$(VERSION)
FUZZTIME ?= 30s

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: build ## build, and start everything on this machine
	bin/butler up

.PHONY: build
build: ## build bin/butler
	CGO_ENABLED=0 go build -ldflags '$(LDFLAGS)' -o bin/butler ./services/butler

.PHONY: test
test: test-deps ## every test, with the real parts they need
	tools/test.sh

.PHONY: test-deps
test-deps: ## install what the tests need and this machine lacks
	@tools/test-deps.sh

.PHONY: test-go
test-go: ## the Go tests alone: make test-go PKG=./pkg/journal/...
	CGO_ENABLED=1 go test -race -timeout 15m $(or $(PKG),./...)

.PHONY: soak
soak: test-deps ## the long tests: 10,000 seeds of the journal, all fault tests, fuzzing
	JOURNAL_SEEDS=10000 go test -count=1 -timeout 3h ./pkg/journal/...
	source .cache/test-env && BUTLER_SOAK=1 CGO_ENABLED=1 go test -race -count=1 -timeout 3h ./...
	$(MAKE) --no-print-directory fuzz

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (30s)
	tools/fuzz.sh $(FUZZTIME)

.PHONY: bench
bench: ## benchmarks, each beside raw JetStream on the same machine
	go -C bench run . $(BENCHFLAGS)

.PHONY: lint
lint: lint-go lint-proto lint-sh ## all linters

.PHONY: lint-go
lint-go: ## go vet and golangci-lint
	go vet ./... ./bench/...
	"$$(tools/tool.sh golangci-lint)" run --allow-parallel-runners --timeout 15m ./...

.PHONY: lint-proto
lint-proto: ## buf: style, and changes that break what is published
	buf="$$(tools/tool.sh buf)" && cd proto && "$$buf" lint && "$$buf" format --diff --exit-code && \
		"$$buf" breaking --against baseline.binpb

.PHONY: lint-sh
lint-sh: ## the shell scripts' syntax
	for f in tools/*.sh .ci/run; do bash -n "$$f" || exit 1; done

.PHONY: generate
generate: generate-proto ## everything that is generated and committed
	go generate ./...
	go test ./proto -run '^TestSchemasAreFresh$$' -count=1 -update
	go test ./proto -run '^TestSubjectsPage$$' -count=1 -update
	$(MAKE) --no-print-directory build
	tools/cli-page.sh >docs/reference/cli.md

.PHONY: generate-proto
generate-proto: ## Go of the messages and services in proto/
	tools/generate-proto.sh proto

.PHONY: baseline
baseline: ## accept the messages in proto/ as published (see CONTRIBUTING.md)
	buf="$$(tools/tool.sh buf)" && cd proto && "$$buf" build --exclude-source-info -o baseline.binpb

.PHONY: clean
clean: ## remove what was built; data/ stays
	rm -rf bin .cache
