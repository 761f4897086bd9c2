# Everything a person or CI needs; each target installs what it uses into .venv by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help quickstart test test-fast check format bench docs clean

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

quickstart: $(VENV)/.quickstart  ## run a real small experiment, kill it, resume it
	@$(BIN)/python examples/quickstart.py

test: $(VENV)/.test check  ## all tests
	$(PYTEST)

test-fast: $(VENV)/.test  ## the tests that take less than 90 seconds
	$(PYTEST) -m "not slow"

check: $(VENV)/.test  ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.test  ## rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.test  ## run every benchmark beside its peers and print ratios
	$(BIN)/python -m benchmarks

docs: $(VENV)/.test  ## regenerate what is generated in docs/
	$(BIN)/python docs/generate.py

clean:  ## remove everything that was installed or generated here
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .hypothesis benchmarks/results benchmarks/.peers
