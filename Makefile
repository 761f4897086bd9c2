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
# Tests start thousands of Python processes. Without bytecode files each driver compiles holdfast anew, for 0.25 s.
unexport PYTHONDONTWRITEBYTECODE
HEBO := $(VENV)/hebo
TENSORFLOW := $(VENV)/tensorflow
RAY := $(VENV)/ray
ON_RAY := tests/cluster/test_losses.py tests/cluster/test_user_scripts.py tests/cluster/test_node_uploads.py
TRACKERS := $(VENV)/trackers
NO_FRAMEWORKS := could not install the frameworks of constraints/integrations.txt: tests that need them are skipped
NO_TENSORFLOW := could not install the CPU build of TensorFlow that constraints/ pins: its tests are skipped
NO_RAY := could not install the Ray that constraints/ pins: tests of clusters are skipped
NO_TRACKERS := could not install the trackers of constraints/trackers.txt: tests that need them are skipped
NO_PLAYWRIGHT := could not install playwright, which constraints/ pins: tests of the live page in a browser are skipped
NO_TORCH := could not install the CPU build of PyTorch that constraints/ pins: tests that need it are skipped

.DEFAULT_GOAL := help
.PHONY: help quickstart test test-fast test-hebo test-tensorflow test-trackers test-ray test-cluster servers page check format bench docs picture screenshots clean

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

$(VENV)/.browser: $(VENV)/.servers constraints/ui.txt ui/package-lock.json
	$(PIP) install -c constraints/base.txt -r constraints/ui.txt && touch $@ || echo "$(NO_PLAYWRIGHT)"

# Searchers with Gaussian processes need PyTorch. The build for GPUs would be gigabytes, so it is that for CPUs or none.
$(VENV)/.models: $(VENV)/.test constraints/models.txt
	$(PIP) install -c constraints/base.txt -r constraints/models.txt && touch $@ || echo "$(NO_TORCH)"

# After PyTorch: pip would otherwise choose the build of it for GPUs.
$(VENV)/.integrations: $(VENV)/.models constraints/integrations.txt
	@if test -e $<; then \
	  $(PIP) install -c constraints/base.txt -r constraints/integrations.txt && touch $@ || echo "$(NO_FRAMEWORKS)"; fi

$(VENV)/.docs: $(VENV)/.test constraints/docs.txt
	$(PIP) install -c constraints/base.txt -r constraints/docs.txt
	@touch $@

# HEBO needs a NumPy that nothing else here works with.
$(HEBO)/.installed: $(BIN)/python pyproject.toml constraints/hebo.txt
	$(PYTHON) -m venv $(HEBO)
	$(HEBO)/bin/python -m pip $(QUIETLY) install -r constraints/hebo.txt -e . && touch $@ || echo "$(NO_TORCH)"

# W&B, MLflow, Comet and Aim are 1.3 GB, and need versions of packages that nothing else here has.
$(TRACKERS)/.installed: $(BIN)/python pyproject.toml constraints/trackers.txt
	$(PYTHON) -m venv $(TRACKERS)
	$(TRACKERS)/bin/python -m pip $(QUIETLY) install -r constraints/trackers.txt -e . && touch $@ || echo "$(NO_TRACKERS)"

# TensorFlow is 1.4 GB, and the same callback is tested on PyTorch: not a part of `make test`.
$(TENSORFLOW)/.installed: $(BIN)/python pyproject.toml constraints/tensorflow.txt
	$(PYTHON) -m venv $(TENSORFLOW)
	$(TENSORFLOW)/bin/python -m pip $(QUIETLY) install -r constraints/tensorflow.txt -e . && touch $@ || echo "$(NO_TENSORFLOW)"

# Ray is 240 MB, and its presence changes what `engine=None` means: an environment of its own.
$(RAY)/.installed: $(BIN)/python pyproject.toml constraints/ray.txt
	$(PYTHON) -m venv $(RAY)
	$(RAY)/bin/python -m pip $(QUIETLY) install -r constraints/ray.txt -e . && touch $@ || echo "$(NO_RAY)"

quickstart: $(VENV)/.quickstart  ## run a real small experiment, kill it, resume it
	@$(BIN)/python examples/quickstart.py

# The cluster's machines mostly wait for one another, so the first target takes as long as the other three together.
test: $(VENV)/.servers $(VENV)/.browser $(VENV)/.integrations $(VENV)/.docs  ## all tests
	$(MAKE) --no-print-directory --jobs 2 --output-sync=target test-ray check test-hebo test-trackers
	$(PYTEST) --durations=50 --junitxml=build/test-results.xml -r s $$(test ! -e $(TRACKERS)/.installed || echo --ignore=tests/trackers)

test-fast: $(VENV)/.test  ## without the slow ones; those of stores only if the servers are installed
	$(PYTEST) -m "not slow"

test-hebo: $(HEBO)/.installed  ## those of HEBOSearch
	@if test -e $<; then $(HEBO)/bin/python -m pytest tests/search/test_hebo.py; fi

test-trackers: $(TRACKERS)/.installed  ## those of W&B, MLflow, Comet, Aim and TensorBoard
	@if test -e $<; then $(TRACKERS)/bin/python -m pytest $(LANES) tests/trackers; fi

test-tensorflow: $(TENSORFLOW)/.installed  ## those of Keras, on TensorFlow; 1.4 GB to install
	@if test -e $<; then KERAS_BACKEND=tensorflow $(TENSORFLOW)/bin/python -m pytest tests/integration/test_keras.py; fi

test-ray: $(RAY)/.installed  ## those of clusters that take a few minutes; they need root and iproute2
	@if test -e $<; then $(RAY)/bin/python -m pytest $(ON_RAY) --timeout 300 -m "not cluster"; fi

test-cluster: $(RAY)/.installed  ## all of those of clusters
	$(RAY)/bin/python -m pytest tests/cluster --timeout 600 --durations=25

servers: $(VENV)/.servers  ## install the storage servers that the tests start

page: $(VENV)/.servers  ## build the live page from ui/ into the package; the result is committed
	PYTHONPATH=tests $(BIN)/python -m servers.page_tools src/holdfast/ui/static

check: $(VENV)/.test  ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.test  ## rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.servers  ## run every benchmark beside its peers and print ratios
	$(BIN)/python -m benchmarks

docs: $(VENV)/.docs  ## regenerate what is generated in docs/, build the site in build/docs, check its links
	$(BIN)/python docs/generate.py
	rm -rf build/docs
	$(BIN)/python docs/site/build.py build/docs

picture: $(VENV)/.base  ## make the README's picture anew, from a real run
	$(BIN)/python docs/picture.py

screenshots: $(VENV)/.browser  ## make the pictures of the live page anew: the browser tests take them
	rm -rf build/screenshots
	$(BIN)/python -m pytest tests/ui/test_page_screenshots.py --timeout 300
	$(BIN)/python docs/screenshots.py build/screenshots docs/images

clean:  ## remove everything that was installed or generated here
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .hypothesis benchmarks/results benchmarks/.peers
