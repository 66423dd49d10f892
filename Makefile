# Everything a contributor or CI runs. `make` alone lists the verbs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO := $(VENV)/.demo

# pip takes these for the packages and for the isolated environment that builds diag; 25.3 and later want the second for
# that. Not exported: a test that calls pip elsewhere would not find the file.
PIP := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip

.DEFAULT_GOAL := help
.PHONY: help setup browser sshd screenshots demo test test-fast test-matrix test-all test-torch check check-format check-lint check-types check-layers docs format bench wheelhouse gpu-check clean

help: ## list these verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## install diag, torch and the development tools into .venv

$(STAMP): pyproject.toml constraints.txt
	@echo "Installing diag (editable), torch and the development tools, as pinned in constraints.txt, into $(VENV)/ (about 2 GB, several more with CUDA; a few minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install -qq --no-compile -e '.[dev]'
	@# pip would compile them on one core. Not those that hardly anything imports, a quarter of all: tests, and models of
	@# transformers. What does not compile (templates, syntax of Python 2) is not Python's to import.
	@$(BIN)/python -m compileall -qq -j 0 -x '/tests/|/transformers/models/' $(VENV)/lib || true
	@touch $@

browser: ## install the browser that the tests of the dashboard look through (Debian's chromium), if there is none
	@command -v $${DIAG_CHROMIUM:-chromium} chromium-browser google-chrome > /dev/null \
	|| { SUDO=$$(test "$$(id -u)" = 0 || echo sudo); \
	     $$SUDO apt-get update -qq && $$SUDO apt-get install -qq --no-install-recommends chromium > /dev/null; } \
	|| { echo "No Chromium, and apt-get cannot install it: install one and set DIAG_CHROMIUM to its path" >&2; exit 1; }

# After the browser, where both are missing: apt-get does one at a time. On its own a package starts a server: asked for.
sshd: | browser ## install OpenSSH's server, which the tests of stores start on a port of their own, if there is none
	@PATH="$$PATH:/usr/sbin" command -v sshd > /dev/null \
	|| { SUDO=$$(test "$$(id -u)" = 0 || echo sudo); \
	     $$SUDO apt-get update -qq && $$SUDO apt-get install -qq --no-install-recommends openssh-server > /dev/null; } \
	|| echo "No OpenSSH server, and apt-get cannot install it: the tests of SFTP are skipped" >&2

screenshots: setup browser ## pictures of every page of the dashboard, light and dark (OUT=folder, default runs/screenshots)
	$(BIN)/python -m tests.browser.screenshots $(or $(OUT),runs/screenshots)

# Without the development tools. Where those are installed already, nothing is.
$(DEMO): pyproject.toml constraints.txt
	@if ! test $(STAMP) -nt pyproject.toml; then \
	  echo "1 of 2: installing diag (editable) and torch, as pinned in constraints.txt, into $(VENV)/ (about 1.1 GB with torch for CPUs, several GB with CUDA; a few minutes)"; \
	  test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || exit 1; \
	  $(PIP) install -q --no-compile -e '.[record]' || exit 1; \
	fi
	@touch $@

demo: $(DEMO) ## train small, plant faults, find them (OUT=folder, default runs/demo)
	@echo "2 of 2: training a small model twice on two CPU ranks, with a slow data loader in the second run (a minute or two)"
	@$(BIN)/diag demo --out $(or $(OUT),runs/demo)
	@echo '(`diag` is in $(BIN))'

# Half of what reading the tests takes is rewriting their asserts, which pytest keeps where Python may write bytecode.
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
CORES = $$(nproc 2> /dev/null || getconf _NPROCESSORS_ONLN)
# Two workers more than cores: many tests wait for a training. Each worker more takes ten seconds to read the tests.
PYTEST_PARALLEL = $(PYTEST) --numprocesses $$(($(CORES) + 2)) --dist loadfile --no-loadscope-reorder
# The few that failed beside others, once more and alone. What passes then is named as not reliable.
AGAIN = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m tests.again
# Verdicts that rest on the times of a training: one after the other, and nothing beside them.
PYTEST_ALONE = $(PYTEST) $(sort $(shell grep -rl 'pytest.mark.multiproc' --include='test_*.py' tests))
# Every process of a training imports diag: compiled once, where PYTHONDONTWRITEBYTECODE keeps Python from doing so.
compiled = @$(BIN)/python -m compileall -q diag collectors app

test: setup browser ## run the tests but for the matrices of trainings; CI runs this (ARGS='-k words' chooses some)
ifdef ARGS
	$(PYTEST) $(ARGS)
else
	$(compiled)
	@failed=0; \
	$(PYTEST_PARALLEL) -m 'not matrix and not multiproc' || $(AGAIN) -m 'not matrix and not multiproc' || failed=1; \
	$(PYTEST_ALONE) -m 'multiproc and not matrix' || failed=1; \
	exit $$failed
endif

test-fast: setup ## run the cheapest tests, as many as fit into a minute of two cores, with few searches for bad input
	$(compiled)
	@$(BIN)/python -m tests.slow
	$(PYTEST) --numprocesses $(CORES) --dist loadfile --no-loadscope-reorder --hypothesis-profile=few -m 'not slow'

test-matrix: setup browser ## run what `make test` leaves out: every strategy, launcher, framework and kill
	$(compiled)
	@failed=0; \
	$(PYTEST_PARALLEL) -m 'matrix and not multiproc' || failed=1; \
	$(PYTEST_ALONE) -m 'multiproc and matrix' || failed=1; \
	exit $$failed

test-all: setup browser ## run every test, with longer searches for bad input
	$(compiled)
	@failed=0; \
	$(PYTEST_PARALLEL) --hypothesis-profile=thorough -m 'not multiproc' || failed=1; \
	$(PYTEST_ALONE) -m multiproc || failed=1; \
	exit $$failed

# Other versions of torch than the pinned one have environments of their own. torch first, with what it asks for: some
# versions want other ones than those that are pinned.
TORCH_ENV = build/torch/$(TORCH)
TORCH_PIP = PIP_DISABLE_PIP_VERSION_CHECK=1 $(TORCH_ENV)/bin/python -m pip install -qq --no-compile
RECORDING_TESTS = tests/attach tests/collectors

test-torch: ## run the tests of recording with another torch (TORCH=2.6.0), in an environment of its own (up to 6 GB)
	@test -n "$(TORCH)" || { echo "Name a version: make test-torch TORCH=2.6.0" >&2; exit 2; }
	@test -x $(TORCH_ENV)/bin/python || $(PYTHON) -m venv $(TORCH_ENV)
	@PIP_CONSTRAINT=/dev/null $(TORCH_PIP) 'torch==$(TORCH)'
	@grep -v '^torch' constraints.txt > $(TORCH_ENV)/constraints.txt
	@PIP_CONSTRAINT=$(TORCH_ENV)/constraints.txt $(TORCH_PIP) -e . pytest pytest-xdist hypothesis
	@$(TORCH_ENV)/bin/python -c 'import torch; print("torch", torch.__version__)'
	$(TORCH_ENV)/bin/python -m pytest --numprocesses 3 --dist loadfile -m 'not matrix' $(or $(ARGS),$(RECORDING_TESTS))

check: check-format check-lint check-types check-layers docs ## formatting, lint, types, layers, documentation: what CI runs

check-format: setup
	$(BIN)/ruff format --check .

check-lint: setup
	$(BIN)/ruff check .

check-types: setup
	@# A worker has three seconds to start, which is not enough on a busy machine: then mypy ends with 2, and works alone.
	$(BIN)/mypy --num-workers 2 || { test $$? = 2 && $(BIN)/mypy; }
	@# The recorder also runs in trainings under Python 3.10. What it takes from torch was checked above, and reading
	@# torch once more takes three quarters of the time: here all of that is Any, and what says so is left out.
	$(BIN)/mypy --python-version 3.10 --follow-imports skip --no-warn-return-any --allow-subclassing-any \
	  --no-warn-unused-ignores --allow-untyped-decorators collectors

check-layers: setup
	$(BIN)/lint-imports

docs: setup ## build the documentation, strictly and without a network, into build/docs
	$(BIN)/python -m sphinx -q -W -n --keep-going docs build/docs

format: setup ## format the code and mend what lint can mend by itself
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: setup ## run the benchmarks in tests/bench, one after the other
	@set -e; for script in $(sort $(filter-out tests/bench/_%,$(wildcard tests/bench/*.py tests/bench/*/__main__.py))); do echo "== $$script"; $(BIN)/python $$script; done

wheelhouse: ## wheels of diag and of what it needs, for machines without a network (OUT=folder, EXTRAS=record,dashboard)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) wheel -q --wheel-dir $(or $(OUT),dist/wheelhouse) '.$(if $(EXTRAS),[$(EXTRAS)])'
	@du -sh $(or $(OUT),dist/wheelhouse)
	@echo "There: pip install --no-index --find-links $(or $(OUT),dist/wheelhouse) 'diag$(if $(EXTRAS),[$(EXTRAS)])'"
	@echo "with this Python ($$($(BIN)/python -V | cut -d' ' -f2 | cut -d. -f1-2)) and kind of machine ($$(uname -sm))"

gpu-check: setup ## train on all GPUs of this machine, plant faults, check verdicts and records (OUT=folder, ARGS='--cpu')
	$(BIN)/python -m tests.gpu $(if $(OUT),--out $(OUT)) $(ARGS)

clean: ## remove caches and build folders; keeps .venv and runs
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
