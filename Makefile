# Everything a person or CI needs; each target installs what it uses into .venv by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
QUIETLY := --quiet --disable-pip-version-check
PIP := $(BIN)/python -m pip $(QUIETLY)
# Two processes for each core, at most eight: half of the time a test waits for processes, servers and disks.
JOBS ?= $(shell n=$$(($$(nproc) * 2)); echo $$((n < 8 ? n : 8)))
LANES := -n $(JOBS) --dist worksteal --timeout 300
PYTEST := $(BIN)/python -m pytest $(LANES)
HEBO := $(VENV)/hebo
TENSORFLOW := $(VENV)/tensorflow
NO_FRAMEWORKS := could not install the frameworks of constraints/integrations.txt: tests that need them are skipped
NO_TENSORFLOW := could not install the CPU build of TensorFlow that constraints/ pins: its tests are skipped
NO_TORCH := could not install the CPU build of PyTorch that constraints/ pins: tests that need it are skipped

.DEFAULT_GOAL := help
.PHONY: help quickstart test test-fast test-hebo test-tensorflow servers check format bench docs picture clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

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

# Searchers with Gaussian processes need PyTorch. The build for GPUs would be gigabytes, so it is that for CPUs or none.
$(VENV)/.models: $(VENV)/.test constraints/models.txt
	$(PIP) install -c constraints/base.txt -r constraints/models.txt && touch $@ || echo "$(NO_TORCH)"

# After PyTorch: pip would otherwise choose the build of it for GPUs.
$(VENV)/.integrations: $(VENV)/.models constraints/integrations.txt
	@if test -e $<; then \
	  $(PIP) install -c constraints/base.txt -r constraints/integrations.txt && touch $@ || echo "$(NO_FRAMEWORKS)"; fi

# HEBO needs a NumPy that nothing else here works with.
$(HEBO)/.installed: $(BIN)/python pyproject.toml constraints/hebo.txt
	$(PYTHON) -m venv $(HEBO)
	$(HEBO)/bin/python -m pip $(QUIETLY) install -r constraints/hebo.txt -e . && touch $@ || echo "$(NO_TORCH)"

# TensorFlow is 1.4 GB, and the same callback is tested on PyTorch: not a part of `make test`.
$(TENSORFLOW)/.installed: $(BIN)/python pyproject.toml constraints/tensorflow.txt
	$(PYTHON) -m venv $(TENSORFLOW)
	$(TENSORFLOW)/bin/python -m pip $(QUIETLY) install -r constraints/tensorflow.txt -e . && touch $@ || echo "$(NO_TENSORFLOW)"

quickstart: $(VENV)/.quickstart  ## run a real small experiment, kill it, resume it
	@$(BIN)/python examples/quickstart.py

test: $(VENV)/.servers $(VENV)/.integrations check test-hebo  ## all tests
	$(PYTEST) --durations=25

test-fast: $(VENV)/.test  ## without the slow ones; those of stores only if the servers are installed
	$(PYTEST) -m "not slow"

test-hebo: $(HEBO)/.installed  ## those of HEBOSearch
	@if test -e $<; then $(HEBO)/bin/python -m pytest tests/search/test_hebo.py; fi

test-tensorflow: $(TENSORFLOW)/.installed  ## those of Keras, on TensorFlow; 1.4 GB to install
	@if test -e $<; then KERAS_BACKEND=tensorflow $(TENSORFLOW)/bin/python -m pytest tests/integration/test_keras.py; fi

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

picture: $(VENV)/.base  ## make the README's picture anew, from a real run
	$(BIN)/python docs/picture.py

clean:  ## remove everything that was installed or generated here
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .hypothesis benchmarks/results benchmarks/.peers
