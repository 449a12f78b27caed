# Every target makes what it needs; only Python 3.11+ and make are assumed.
SHELL := /bin/sh
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
STAGE ?= prod
PYTEST_WORKERS ?= 2
# Suites whose tests mostly wait, for heartbeats, daemons and time limits of real processes.
WAITING_WORKERS ?= 3
SLURM ?= 26.05 24.11 22.05
# Where pytest keeps what failed last: suites that run beside each other each need a folder of their own.
CACHE ?= .pytest_cache
PYTEST = $(BIN)/python -m pytest -o cache_dir="$(CACHE)"
# `make test PART=agent` plays the tests of one part; every folder of tests is in one (tests/infra/test_ci.py). Suites with a
# target of their own belong to a part, too: api_fuzz to the service, train, frameworks and cuda to the monitor, slurm to
# the agent, console to the command line.
PART_service := adapters api domain drills guardrails guardrails_nodes ingest ledger notify platforms recovery security \
	services slack upgrade
PART_monitor := checkpoints detectors monitor signatures
PART_agent := agent agent_slurm
PART_cli := cli docs doctor drawing infra
PART_testkit := demo fleets localcloud proving replay $(notdir $(wildcard tests/test_*.py))
PLAYED = $(addprefix tests/,$(foreach part,$(PART),$(or $(PART_$(part)),$(error no part of the tests is called $(part)))))
# Written, wherever the environment says otherwise: else every process of a suite compiles the project and its tests anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: release demo test test-long test-frameworks test-train test-pythons test-cuda e2e-slurm e2e-console test-crash test-api docs deflake prove prove-fresh prove-judge lock audit check bench package deploy undeploy smoke clean format help

help:            ## what each target does
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/ —/'

$(VENV)/.ready: requirements-dev.txt requirements.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed and none was found: install it, or name it: make PYTHON=/path/to/python3.13" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) has no venv or pip: install them (Debian: apt-get install python3-venv python3-pip)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -r requirements-dev.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# PyTorch first: DeepSpeed is built from source and looks at the PyTorch that is there. `-c` keeps the versions of the
# service's own tools, which stand in the same environment. pip's long log is shown only where it failed.
$(VENV)/.frameworks: $(VENV)/.ready requirements-frameworks.txt
	sed -n 's/^\([A-Za-z0-9._-]*==[^ ;]*\).*/\1/p' requirements-dev.txt >$(VENV)/pins.txt
	{ $(BIN)/python -m pip install --disable-pip-version-check -c $(VENV)/pins.txt \
		"$$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' requirements-frameworks.txt)" && \
	  DS_BUILD_OPS=0 DS_ACCELERATOR=cpu $(BIN)/python -m pip install --disable-pip-version-check \
		--no-build-isolation -c $(VENV)/pins.txt -r requirements-frameworks.txt; \
	} >$(VENV)/frameworks.log 2>&1 || { cat $(VENV)/frameworks.log >&2; exit 1; }
	touch $@

# MkDocs and its theme; the lock was made with the versions of requirements-dev.txt, so nothing of the service's own changes.
$(VENV)/.docs: $(VENV)/.ready requirements-docs.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -r requirements-docs.txt
	touch $@

# A real Slurm of each version, in a folder of its own.
$(VENV)/.slurm-%: $(VENV)/.ready tests/slurm/lab/install.py
	$(BIN)/python -m tests.slurm.lab.install --version $* --root $(VENV)/slurm-$*
	touch $@

# Chromium and its driver, in the same two ways. The file says where they are.
$(VENV)/.chromium: $(VENV)/.ready
	$(BIN)/python -m tests.console.chromium_install --root $(VENV)/chromium >$@.new
	mv $@.new $@

demo: $(VENV)/.ready  ## recover four real faults on the embedded cloud (ARGS='--fault nan --seed 7 --json')
	$(BIN)/rekindle demo $(ARGS)

test: $(VENV)/.ready  ## the tests, no network, under five minutes on two cores (PART=service, monitor, agent, cli or testkit: one part of them)
	HYPOTHESIS_PROFILE="$${HYPOTHESIS_PROFILE:-quick}" $(PYTEST) -m "not long" -n $(WAITING_WORKERS) --dist worksteal $(PLAYED) $(ARGS)

test-long: $(VENV)/.ready  ## those that take longer: whole recoveries disturbed everywhere, exhaustive tables, real processes; properties with all their examples
	$(PYTEST) -m "long or hypothesis" -n $(WAITING_WORKERS) --dist worksteal $(PLAYED) $(ARGS)

test-frameworks: $(VENV)/.frameworks  ## real PyTorch runs killed, frozen, poisoned; every integration's example (installs them)
	$(PYTEST) tests/frameworks -n $(WAITING_WORKERS) --dist worksteal $(ARGS)

test-train: $(VENV)/.frameworks  ## the training side under faults: real ranks killed, frozen, cut off, in every integration (ARGS='--train-stories 200 --seed 7')
	$(PYTEST) tests/train -n $(WAITING_WORKERS) --dist worksteal $(ARGS)

# The training side alone: the service, and so the tests' other parts, needs 3.11. On the path, or where pyenv keeps it.
# Hypothesis is the newest for that Python: what is pinned needs 3.11.
PYTHONS ?= 3.10 3.12 3.13
$(VENV)/.python-%: $(VENV)/.ready
	@for python in python$* "$$HOME"/.pyenv/versions/$*.*/bin/python; do \
		"$$python" -c 'import ensurepip, venv' 2>/dev/null && break; done; "$$python" -m venv $(VENV)/python-$*
	sed -nE 's/^((pytest|pytest-xdist|moto|slack-sdk)==[^ ;]*).*/\1/p' requirements-dev.txt >$(VENV)/python-$*/pins.txt
	$(VENV)/python-$*/bin/python -m pip install -q --disable-pip-version-check -c $(VENV)/python-$*/pins.txt \
		pytest pytest-xdist hypothesis "moto[server]" slack-sdk numpy boto3 typing-extensions
	touch $@

test-pythons: $(PYTHONS:%=$(VENV)/.python-%)  ## the training side on the other Pythons of training images (PYTHONS="3.10 3.12 3.13")
	@for version in $(PYTHONS); do echo "--- Python $$version"; $(VENV)/python-$$version/bin/python -m pytest -p tests.python310 \
		-o cache_dir="$(CACHE)" -m "not long" -n $(PYTEST_WORKERS) --dist worksteal $(PART_monitor:%=tests/%) $(ARGS) || exit $$?; done

# Needs a CUDA device and PyTorch for it, which the pinned frameworks are not: name a Python that holds both, and pytest.
CUDA_PYTHON ?= python3
test-cuda:  ## the training side on a CUDA device (CUDA_PYTHON=/path/to/python3 with PyTorch for CUDA and pytest)
	@$(CUDA_PYTHON) -c 'import pytest, torch; torch.zeros(1, device="cuda")' || { echo "test-cuda needs a CUDA device, and CUDA_PYTHON with PyTorch for CUDA and pytest" >&2; exit 1; }
	$(CUDA_PYTHON) -m pytest --noconftest -c /dev/null --rootdir . --import-mode=importlib -p no:cacheprovider tests/cuda $(ARGS)
	$(CUDA_PYTHON) -m benchmarks.bench_cuda

e2e-slurm: $(SLURM:%=$(VENV)/.slurm-%) $(VENV)/.frameworks  ## a real Slurm of each version, its agent, real jobs killed, frozen, cancelled (SLURM=26.05 plays that one)
	@for version in $(SLURM); do echo "--- Slurm $$version"; \
	SLURM_ROOT="$(abspath $(VENV))/slurm-$$version" $(PYTEST) tests/slurm -n $(WAITING_WORKERS) --dist worksteal $(ARGS) || exit $$?; done

e2e-console: $(VENV)/.chromium  ## a real Chromium on the console: an Incident watched, approved, recovered; security; scale
	CHROMIUM_INSTALLATION="$(abspath $(VENV)/.chromium)" $(PYTEST) tests/console -n $(PYTEST_WORKERS) --dist loadfile $(ARGS)

test-crash: $(VENV)/.ready  ## every crash position of every playbook, every call disturbed (half an hour on two cores)
	REKINDLE_CRASH=all $(PYTEST) -n $(PYTEST_WORKERS) --dist worksteal \
		tests/recovery/test_crash_anywhere.py tests/recovery/test_calls_disturbed.py $(ARGS)

# BUSY: so many busy loops beside it. Slurm and Chromium are those that `make e2e-slurm` and `make e2e-console` installed.
TIMES ?= 100
BUSY ?= 0
deflake: $(VENV)/.ready  ## repeat tests until one fails (TEST="tests/slurm/test_accounting_slurm.py -k 'a test'" TIMES=100), also on busy cores (BUSY=2)
	@$(if $(TEST),,$(error TEST is what pytest shall play: TEST=tests/agent/test_lease.py))export \
	SLURM_ROOT="$${SLURM_ROOT:-$(abspath $(VENV))/slurm-26.05}" CHROMIUM_INSTALLATION="$(abspath $(VENV)/.chromium)"; \
	trap '[ -z "$$busy" ] || kill $$busy' EXIT; trap 'exit 1' INT TERM; \
	for n in $$(seq $(BUSY)); do while :; do :; done & busy="$$busy $$!"; done; \
	for n in $$(seq $(TIMES)); do echo "--- $$n of $(TIMES)"; $(PYTEST) $(TEST) $(ARGS) || exit $$?; done

# uv resolves for every platform and writes the hash of every file; what is pinned stays as it is unless its list changed.
LOCK = build/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
	--custom-compile-command "make lock"
lock: build/lock/bin/uv  ## requirements*.txt from requirements*.in: pins and hashes (needs a package index)
	$(LOCK) requirements-dev.in -o requirements-dev.txt
	sed -n 's/^\([A-Za-z0-9._-]*==[^ ;]*\).*/\1/p' requirements-dev.txt >build/lock/pins.txt
	$(LOCK) requirements.in -c build/lock/pins.txt -o requirements.txt
	$(LOCK) requirements-pure.in --no-deps -o requirements-pure.txt
	$(LOCK) requirements-docs.in -c build/lock/pins.txt -o requirements-docs.txt

audit: build/lock/bin/uv  ## known vulnerabilities of what is pinned; fails without PyPI's vulnerability data
	build/lock/bin/pip-audit --strict --disable-pip --require-hashes -r requirements-dev.txt

build/lock/bin/uv:
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install -q --disable-pip-version-check uv==0.13.9 pip-audit==2.10.1

prove: $(VENV)/.ready  ## 10,000 simulated Incidents with sources that go wrong, and a judge that knows the truth (ARGS='--incidents 100000 --seed 7 --jobs 2')
	$(BIN)/python -m simulation $(ARGS)

prove-fresh: $(VENV)/.ready  ## what CI plays of this commit: 600 Incidents of the seed that its tree makes
	$(BIN)/python -m simulation --incidents 600 --seed $$(printf %d 0x$$(git rev-parse 'HEAD^{tree}' 2>/dev/null | cut -c1-7 | grep . || echo 1)) $(ARGS)

prove-judge: $(VENV)/.ready  ## the judge judged: each mechanism of the service switched off in turn, and what catches it (ARGS='--jobs 2')
	$(BIN)/python -m tests.proving.prove_judge $(ARGS)

# One process and one seed: the requests and the state that they meet are the same each time.
test-api: $(VENV)/.ready  ## the running API fuzzed by its own OpenAPI document, over HTTP on the embedded cloud
	$(PYTEST) tests/api_fuzz -W "ignore:IAMAuthorizer:UserWarning" $(ARGS)

check: $(VENV)/.ready  ## ruff, mypy --strict, import-linter, codespell, cfn-lint on the built template
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.10 --cache-dir .mypy_cache/oldest -p rekindle
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/python -m infra.package --offline --out build/check
	$(BIN)/cfn-lint build/check/sam.json

docs: $(VENV)/.docs  ## the documentation as a site in build/site, searchable, with strict links (installs MkDocs)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet $(ARGS)

format: $(VENV)/.ready  ## let ruff rewrite the code
	$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.ready  ## counts and ratios: cold starts, overhead, the monitor, detectors, hangs, fleets (ARGS=overhead)
	$(BIN)/python -m benchmarks $(ARGS)

package: $(VENV)/.ready  ## the deployable template and bundle in build/package
	$(BIN)/python -m infra.package --out build/package

deploy: $(VENV)/.ready  ## create or update the stack in your account, after asking (STAGE=prod ARGS='--yes --parameter NAME=VALUE'; ARGS=--plan: only show it)
	$(BIN)/rekindle stack deploy --stage $(STAGE) $(ARGS)

undeploy: $(VENV)/.ready  ## remove the stack, after asking (ARGS=--yes: without); tables and bucket stay, and are named with all that is left
	$(BIN)/rekindle stack undeploy --stage $(STAGE) $(ARGS)

smoke: $(VENV)/.ready  ## fail one cheap training job in your account on purpose and watch it come back (STAGE=dev ARGS='--region eu-west-1')
	$(BIN)/python -m infra.smoke --stage $(STAGE) $(ARGS)

release: $(VENV)/.ready  ## sdists and wheels in dist/, checked in an empty environment, with their sizes (TAG=v0.1.0 must be the version)
	$(BIN)/python -m infra.release --out dist $(if $(TAG),--tag $(TAG))

clean:           ## remove everything the targets made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
