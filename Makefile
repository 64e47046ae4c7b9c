# Every target makes the environment that it needs; a second run finds the stamps and is quick.
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install -q -c constraints.txt
CORE   := $(VENV)/.stamp-core
SERVER := $(VENV)/.stamp-server
DEV    := $(VENV)/.stamp-dev
SERVICES := $(VENV)/.stamp-services
# One more than two cores: many tests wait for disks, servers and other processes.
WORKERS ?= 3
# The size of release-demo.
USERS ?= 50000
URLS ?= 500
# The workers share the cores already.
export OPENBLAS_NUM_THREADS := 1
# Code is compiled once, not in every process.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

.DEFAULT_GOAL := help
.PHONY: help demo release-demo test test-quick test-deep lint format bench bench-peers serve build docs proofs clean

help:  ## Show what can be made
	@grep -hE '^[a-z-]+:.*## ' Makefile | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(CORE): pyproject.toml constraints.txt | $(VENV)/bin/python
	@test -f $(DEV) || { echo "installing dither into $(VENV)"; $(PIP) -e .; }
	@touch $@

$(SERVER): $(CORE)
	@test -f $(DEV) || { echo "installing dither with its servers into $(VENV)"; $(PIP) -e ".[server]"; }
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing dither and everything that its tests use into $(VENV) (a few minutes the first time)"
	@$(PIP) -e ".[dev]"
	@touch $@

# Programs that some tests drive. Without root or apt-get nothing is installed, and those tests say what they lack.
$(SERVICES): | $(VENV)/bin/python
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! { command -v chromium && command -v systemd-analyze && test -x /usr/sbin/nginx; } >/dev/null; then \
		echo "installing chromium, nginx-light and systemd for tests"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium nginx-light systemd >/dev/null || true; \
	fi
	@touch $@

demo: $(CORE)  ## Five questions to a small private dataset
	@$(BIN)/dither demo

release-demo: $(CORE)  ## A static release of generated data, measured; USERS=1000000 URLS=10000 for the large one
	@$(BIN)/python examples/url_shares/release_demo.py --users $(USERS) --urls $(URLS)

test: $(DEV) $(SERVICES)  ## All tests but the deep ones
	$(PYTEST) --tier test

test-quick: $(DEV)  ## The tests that take seconds
	$(PYTEST) --tier quick

test-deep: $(DEV) $(SERVICES)  ## Everything, with the large samples
	$(PYTEST) --tier deep

lint: $(DEV)  ## ruff, mypy --strict, the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(DEV)  ## Lay out the code
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

proofs: $(DEV)  ## List the proof pages and whether their code has changed since
	$(BIN)/python tests/house/proofs.py

bench: $(DEV)  ## Speed and error beside the peers
	$(BIN)/python benchmarks/run.py

bench-peers: $(DEV)  ## The same queries to Dither and to five other systems, in one table
	$(BIN)/python benchmarks/queries.py --record docs/records/peers.md

serve: $(SERVER)  ## The demonstration dataset behind both servers on this machine
	@$(BIN)/dither demo --directory .dither/demo
	$(BIN)/dither serve .dither/demo/dataset.yml

build: $(DEV)  ## A wheel, tried in an empty environment outside the checkout
	$(BIN)/python -m build --no-isolation --outdir dist
	$(BIN)/python tests/house/try_wheel.py dist

docs: $(DEV)  ## The documentation as a site, strictly
	$(BIN)/mkdocs build --strict

clean:  ## Remove what the other targets made, but not the environment
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
