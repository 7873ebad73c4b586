# On a fresh machine, use `make e2e` (the main job) and `make test` (the tests). Both create .venv from the lock files, and run
# `harness doctor --fix`, which installs Docker and kind if they are missing.

PYTHON ?= python3
export JOB ?= jobs/multinode.yaml
PYTEST_ARGS ?=
# The number of pytest-xdist workers follows -n. It exceeds the number of cores, because the workers that run tests on a
# cluster mostly wait (tests/conftest.py). `make test-cluster` uses two workers, because each worker has its own cluster.
PARALLEL := --no-loadscope-reorder -n

BIN := .venv/bin
MADE := .venv/.made
PINS := $(BIN)/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-annotate --no-header
COMPILE := $(PINS) --upgrade --universal --python-version 3.11
# The Python version is the one that harness/versions.toml sets for the images. Lock files contain hashes for all platforms.
WORKER := $(PINS) --upgrade --python-version 3.13 --python-platform x86_64-manylinux_2_28
ARM64 := $(PINS) --python-version 3.13 --python-platform aarch64-manylinux_2_28

CACHE := $(or $(HARNESS_CACHE_DIR),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/pluto-e2e-harness)
# PyPI has no shellcheck for arm64 Linux. There, the shellcheck on PATH is used.
SHELLCHECK = $(or $(wildcard $(BIN)/shellcheck),shellcheck)
# The file name contains the version, so a new version is installed next to the old one. This is not a make target, because
# the path of a target cannot contain spaces.
ACTIONLINT_VERSION := v1.7.12
ACTIONLINT := $(CACHE)/tools/actionlint-$(ACTIONLINT_VERSION)
KIND := $(shell sed -n 's/^kind = "\(v[0-9.]*\)".*/\1/p' harness/versions.toml)
PYTHON_WANTED := Python 3.11 or newer with venv is needed
PYTHON_HELP := install it, and pass it to make, for example: make PYTHON=python3.11
GO_MISSING := Go 1.26 or newer is required but is not on PATH. On Debian, HARNESS_IMAGES=source make doctor installs it as root

# Targets install packages into .venv and into the system, so they cannot run in parallel (`make -j`).
.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help e2e images test test-cluster nightly faults programs soak versions unit coverage lint workflows format site reference doctor kind browser tools pictures recording lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

e2e: doctor ## run the main job on a kind cluster, and print its verdict
	$(BIN)/harness run "$$JOB"

images: doctor ## build or pull all images (building them from source takes 7 to 10 minutes the first time)
	$(BIN)/harness images build

test: images browser ## run the unit and integration tests, and one launch of each kind on a cluster (docs/tests.md)
	$(BIN)/pytest $(PARALLEL) 4 -m "smoke or not cluster" $(PYTEST_ARGS)

test-cluster: images browser ## run the other tests on a cluster, and one fault of each kind
	$(BIN)/pytest $(PARALLEL) 2 -m "cluster and not smoke" $(PYTEST_ARGS)

# These clusters are created by kind. The clusters of `make test` are copied from a template if one exists.
nightly: images browser tools ## run the tests that neither of them runs, except faults; more examples for property tests
	$(BIN)/pytest tests/unit --hypothesis-profile=nightly
	HARNESS_FRESH=true $(BIN)/pytest -m "nightly and not faults" $(PYTEST_ARGS)

# SHARD=2/5 selects the second of five parts of equal duration, and writes a table of this part only.
faults: images ## inject all faults (90 minutes) or those in SHARD=I/N; write their table and recorded bundles
	@mkdir -p runs
	$(BIN)/harness faults --record tests/recorded \
		$(if $(SHARD),--shard $(SHARD) --table runs/faults-$(subst /,-of-,$(SHARD)).md,--table docs/faults.md)

programs: images ## run generated training programs in containers for SECONDS (600); add to docs/programs.json
	$(BIN)/harness programs --seconds $(or $(SECONDS),600) --seed $(or $(SEED),1) --ledger docs/programs.json

soak: images ## run 100 healthy launches in a row on one cluster, and check for leaks
	$(BIN)/harness soak 100 --parallel 2 --keep failed --table docs/soak.md

versions: images ## run the main job with the newest konduktor and Pluto client; bisect each failure
	$(BIN)/python .ci/versions.py

unit: browser ## run the tests that do not need Docker
	$(BIN)/pytest $(PARALLEL) 3 tests/unit tests/integration $(PYTEST_ARGS)

coverage: browser ## measure the code coverage of the tests without Docker, in runs/coverage.md
	@mkdir -p runs
	$(BIN)/pytest $(PARALLEL) 3 tests/unit tests/integration --cov=harness --cov-report=markdown:runs/coverage.md

lint: $(MADE) workflows ## run ruff, mypy, the import contracts and actionlint
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# Go verifies its downloads with its checksum database.
workflows: $(MADE) ## run actionlint and shellcheck on .github/workflows and .ci
	@[ -x "$(ACTIONLINT)" ] || command -v go >/dev/null || { echo "$(GO_MISSING)" >&2; exit 2; }
	@[ -x "$(ACTIONLINT)" ] || GOBIN="$(ACTIONLINT).unfinished" \
		go install github.com/rhysd/actionlint/cmd/actionlint@$(ACTIONLINT_VERSION)
	@[ -x "$(ACTIONLINT)" ] || mv "$(ACTIONLINT).unfinished/actionlint" "$(ACTIONLINT)"
	@rm -rf "$(ACTIONLINT).unfinished"
	"$(ACTIONLINT)" -shellcheck $(SHELLCHECK) -pyflakes= .github/workflows/*.yml examples/*/.github/workflows/*.yml
	$(SHELLCHECK) .ci/run .ci/plan .ci/summary .ci/newest-controllers .ci/release harness/provision/images/files/*.sh tests/k8s/*.sh

format: $(MADE) ## format the code with ruff
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

site: $(MADE) ## build the documentation site in site/, and check all links
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(CACHE)/tools/site
	$(BIN)/uv pip sync --quiet --no-build --python $(CACHE)/tools/site --require-hashes locks/site.txt
	$(CACHE)/tools/site/bin/mkdocs $(or $(MKDOCS),build) --quiet --strict

reference: $(MADE) ## generate docs/reference, docs/causes.md, docs/guides.md and docs/torchrun-wrong-objects.md
	$(BIN)/python -m harness.reference docs/reference
	$(BIN)/python -m harness.reference.causes >docs/causes.md
	$(BIN)/python tests/k8s/guide_table.py >docs/guides.md
	$(BIN)/python tests/k8s/wrong_objects.py >docs/torchrun-wrong-objects.md

doctor: $(MADE) ## check the machine, and install missing tools on Debian as root
	$(BIN)/harness doctor --fix

browser: $(MADE) ## check that Chromium is installed for the tests; on Debian as root, install it and busybox
	$(BIN)/python -m tests.browser

tools: $(MADE) ## install Helm (with Go) and Prometheus (from Debian) into the cache, for nightly tests
	$(BIN)/python -m tests.tools

pictures: browser ## take the screenshots in docs/images from recorded bundles and the tracker
	$(BIN)/python -m docs.make_screenshots
	$(BIN)/python -m docs.make_tracker_screenshots

recording: doctor ## record a launch on a cluster in docs/images/live.svg
	$(BIN)/python -m docs.make_recording

kind: ## install the required kind version with Go, on machines without Debian packages
	@command -v go >/dev/null || { echo "$(GO_MISSING)" >&2; exit 2; }
	go install sigs.k8s.io/kind@$(KIND)
	@command -v kind >/dev/null || echo "kind is in $${GOBIN:-$$(go env GOPATH)/bin}, which is not on PATH: add it, or set HARNESS_KIND_BIN"

lock: $(MADE) ## update the lock files to the newest compatible versions
	$(COMPILE) pyproject.toml --group dev -o locks/dev.txt
	$(COMPILE) -c locks/dev.txt locks/build.in -o locks/build.txt
	$(COMPILE) locks/mlflow.in -o locks/mlflow.txt
	$(COMPILE) locks/site.in -o locks/site.txt
	$(COMPILE) --no-deps -c locks/dev.txt locks/colossalai.in -o locks/colossalai.txt
	$(COMPILE) harness/locks/konduktor.in -o harness/locks/konduktor.txt
	$(WORKER) harness/locks/tracker.in -o harness/locks/tracker.txt
	$(WORKER) harness/locks/worker.in -o harness/locks/worker.txt
	$(WORKER) -c locks/dev.txt harness/locks/controller.in -o harness/locks/controller.txt
	$(WORKER) -c harness/locks/worker.txt harness/locks/torch.in -o harness/locks/torch.txt
	$(COMPILE) -c locks/build.txt harness/locks/sdist.in -o harness/locks/sdist.txt
	@for name in tracker worker controller torch; do \
		$(ARM64) -c harness/locks/$$name.txt harness/locks/$$name.in -o $(CACHE)/arm64.txt && \
		cmp harness/locks/$$name.txt $(CACHE)/arm64.txt || { echo "$$name: arm64 needs a lock of its own" >&2; exit 1; }; \
	done; rm -f $(CACHE)/arm64.txt

clean: ## delete the cluster that `harness` created, and everything built in this checkout
	@if [ -x $(BIN)/harness ]; then $(BIN)/harness down; fi
	rm -rf .venv build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find harness fixtures tests -name __pycache__ -type d -prune -exec rm -rf {} +

# pluto-ml is installed for the tests of the tracker. Its .pth file is removed, because it would import pluto whenever Python
# starts. The tests start `harness` hundreds of times, and each start would take one second longer. The .pth file is only for
# wandb, which nothing here uses. All modules are compiled in advance, because with PYTHONDONTWRITEBYTECODE each start would
# compile them again, which takes another second.
$(MADE): locks/build.txt locks/dev.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON_WANTED), but $(PYTHON) is not on PATH: $(PYTHON_HELP)" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON_WANTED), but $(PYTHON) is $$($(PYTHON) -V 2>&1): $(PYTHON_HELP)" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON_WANTED), but $(PYTHON) has no venv: install your system's package for it, such as python3-venv on Debian and Ubuntu" >&2; exit 2; }
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --no-user --disable-pip-version-check --require-hashes --only-binary=:all: -r locks/build.txt
	$(BIN)/uv pip sync --quiet --compile-bytecode --no-build --python $(BIN)/python --require-hashes locks/build.txt locks/dev.txt
	@# The mode compat adds the folder to sys.path. The default mode installs a finder, which takes 14 ms at each start of Python.
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation \
		--config-settings editable_mode=compat --editable .
	$(BIN)/python -m compileall -q harness
	rm -f .venv/lib/python3*/site-packages/*_pluto_wandb_hook.pth
	@touch $@
