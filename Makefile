# Everything a person or CI needs; each target installs what it uses into .venv by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help quickstart test test-fast servers check format bench docs clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: $(BIN)/python pyproject.toml constraints/base.txt
	$(PIP) install -c constraints/base.txt -e .
	@touch $@

$(VENV)/.quickstart: $(VENV)/.base constraints/quickstart.txt
	$(PIP) install -c constraints/base.txt -r constraints/quickstart.txt
	@touch $@

$(VENV)/.test: $(VENV)/.quickstart constraints/test.txt
	$(PIP) install -c constraints/base.txt -r constraints/test.txt
	@touch $@

$(VENV)/.servers: $(VENV)/.test constraints/servers.txt $(wildcard tests/servers/*.py) tests/servers/sshd_shim.c
	PYTHONPATH=tests $(BIN)/python -m servers
	@touch $@

quickstart: $(VENV)/.quickstart  ## run a real small experiment, kill it, resume it
	@$(BIN)/python examples/quickstart.py

test: $(VENV)/.servers check  ## all tests
	$(PYTEST)

test-fast: $(VENV)/.test  ## without the slow ones; those of stores only if the servers are installed
	$(PYTEST) -m "not slow"

servers: $(VENV)/.servers  ## install the storage servers that the tests start

check: $(VENV)/.test  ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.test  ## rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.servers  ## run every benchmark beside its peers and print ratios
	$(BIN)/python -m benchmarks

docs: $(VENV)/.test  ## regenerate what is generated in docs/
	$(BIN)/python docs/generate.py

clean:  ## remove everything that was installed or generated here
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .hypothesis benchmarks/results benchmarks/.peers
