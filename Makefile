# Everything a developer and CI run. `make` alone lists the targets.

CARGO ?= cargo
.DEFAULT_GOAL := help

.PHONY: help build test check fmt-check clippy doc deny deploy-check bench lab soak fuzz tour

help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The tests run the real program and real agents, so those are built first, by
# name: a test run builds only what the test itself links.
build: ## Build the program and the tests' own programs (debug)
	$(CARGO) build --workspace --bins

# Tests wait more than they compute: for deadlines, for disks, for processes.
THREADS ?= $(shell echo $$(( 2 * $$(nproc) )))
test: build ## Run every test of the workspace
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
		set -x; $(CARGO) test --workspace --doc && $(CARGO) nextest run --workspace --no-fail-fast --test-threads $(THREADS); \
	else \
		set -x; $(CARGO) test --workspace --no-fail-fast; \
	fi

check: fmt-check clippy doc deny deploy-check ## Check format, lints, docs, dependencies and deploy/; warnings are errors

fmt-check:
	$(CARGO) fmt --all --check

clippy:
	$(CARGO) clippy --workspace --all-targets -- -D warnings

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --document-private-items

# The advisories live in a repository of their own, which not every machine can
# reach; the rest of the check needs no network.
deny:
	@if ! $(CARGO) deny --version >/dev/null 2>&1; then \
		echo "make deny: SKIPPED, cargo-deny is not installed (cargo install --locked cargo-deny)"; \
	else \
		set -ex; \
		$(CARGO) deny --log-level error check bans licenses sources; \
		if $(CARGO) deny --log-level off fetch db; then \
			$(CARGO) deny check --disable-fetch advisories; \
		else \
			echo "make deny: advisories SKIPPED, their database cannot be fetched"; \
		fi; \
	fi

# Each of these is checked where its tool is. systemd wants to see the program, so it
# is shown a copy of the unit with one that is there.
UNIT = target/deploy/conductor.service
deploy-check:
	@mkdir -p $(dir $(UNIT)); \
	sed 's#/usr/local/bin/conductor#/bin/true#' deploy/systemd/conductor.service > $(UNIT); \
	run() { \
		if command -v "$$1" >/dev/null 2>&1; then echo "$$@"; "$$@"; \
		else echo "make deploy-check: $$1 SKIPPED, it is not installed"; fi; \
	}; \
	set -e; \
	run systemd-analyze verify --man=no $(UNIT); \
	run yamllint --strict --config-file deploy/yamllint.yaml deploy/compose deploy/helm/conductor/Chart.yaml deploy/helm/conductor/values.yaml; \
	run hadolint deploy/docker/Dockerfile; \
	run helm lint --strict deploy/helm/conductor

bench: ## Measure the conductor against the agent alone, over ssh and behind its peer
	$(CARGO) run --release --package conductor-tests --bin bench

# One green run proves little about races. First a program in which everything breaks all
# the time beneath many sessions, and nothing may be lost (`SOAK_SEED` repeats a run, the
# rest is in tests/src/bin/soak/main.rs). Then the tests of kills, restarts, orphans, removals
# that are killed at each of their steps, cut and flipped bytes, and of the policy's reading of
# command lines, with large numbers. Then every test, ROUNDS times. It stops at the first failure.
SOAK_MINUTES ?= 10
KILLS ?= 200
RESTARTS ?= 50
ORACLE ?= 50000
ROUNDS ?= 0
soak: build ## Break everything for SOAK_MINUTES (default 10), then the long variants of tests
	$(CARGO) build --release --package conductor --bin conductor
	$(CARGO) build --release --package conductor-tests --bin fake-agent
	SOAK_MINUTES=$(SOAK_MINUTES) $(CARGO) run --release --package conductor-tests --bin soak
	CRASH_KILLS=$(KILLS) $(CARGO) test --package conductor-tests --test crash
	RESTARTS=$(RESTARTS) $(CARGO) test --package conductor-tests --test restart
	ORPHAN_ROUNDS=$(KILLS) ORPHAN_SEED=$$(date +%s) $(CARGO) test --package conductor-tests --test contained orphans
	KILL_STEPS=0 KILL_SEED=$$(date +%s) $(CARGO) test --package conductor-tests --test retention kill::
	CUT_STEP=1 FLIP_STEP=1 $(CARGO) test --package conductor-tests --test faults_network --test faults_bits
	ORACLE_RUNS=$(ORACLE) ORACLE_SEED=$$(date +%s) $(CARGO) test --package conductor-tests --test policy_oracle
	@for round in $$(seq $(ROUNDS)); do \
		echo "make soak: round $$round of $(ROUNDS)"; \
		$(MAKE) --no-print-directory test || exit 1; \
	done

# The properties of tests/src/properties.rs, held against libFuzzer with the address
# sanitizer, each for FUZZ_SECONDS, more than 256 MiB at once or 10 s for one input being
# failures too. What is found on the way stays in target/fuzz; an input that fails belongs into
# tests/fuzz/corpus. `make fuzz FUZZ="frame shell"` runs some. The sanitizer needs nightly, or
# to be told that stable will do.
FUZZ_SECONDS ?= 60
FUZZ ?= $(basename $(notdir $(wildcard tests/fuzz/targets/*.rs)))
fuzz: ## Fuzz every reader for FUZZ_SECONDS (default 60) with a sanitizer; needs cargo-fuzz
	@if ! $(CARGO) fuzz --version >/dev/null 2>&1; then \
		echo "make fuzz: cargo-fuzz is not installed (cargo install --locked cargo-fuzz)"; exit 1; \
	fi
	cp Cargo.lock tests/fuzz/Cargo.lock
	@set -e; export RUSTC_BOOTSTRAP=1; \
	for target in $(FUZZ); do \
		mkdir -p target/fuzz/corpus/$$target; \
		$(CARGO) fuzz run --fuzz-dir tests/fuzz --target-dir target/fuzz $$target \
			target/fuzz/corpus/$$target tests/fuzz/corpus/$$target -- \
			-max_total_time=$(FUZZ_SECONDS) -timeout=10 -malloc_limit_mb=256 -max_len=16384 -print_final_stats=1; \
	done

# Agents are installed by package name, once, into target/lab; the model they
# talk to is a fake one on loopback. `make lab LAB="--json goose"` tries one, and
# `make lab LAB="--bubble"` holds them by bubblewrap, too;
# `make lab LAB="--readme README.md"` renews the README's table.
lab: build ## Try real agents with a fake model; prints what works
	python3 tests/lab/lab.py $(LAB)

tour: build ## Take the README's pictures, of a real service in a place of its own
	python3 tests/tour/tour.py
