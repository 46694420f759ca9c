# Two commands on a fresh machine: `make demo` and `make test`. Each makes its own environment in .venv,
# installs what it needs, says what it does, and does it. Nothing is needed but Python 3.10+ and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Some tests wait for processes and brokers, and leave a core to others. A worker takes up to 1 GB of memory.
WORKERS ?= 4
# pip compiles no modules: there are 18,000. Those that are imported are compiled then, and kept.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
unexport PYTHONDONTWRITEBYTECODE
# A file's tests run one after another in one process, and files begin in the order of tests/conftest.py.
PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help demo check test lint compiled slow web docs pictures release clean

help:
	@echo "make demo   eight device processes, a real MQTT broker, real handwritten digits: about two minutes"
	@echo "make check  lint, types, layers and the tests that need no torch, process, broker, browser or database"
	@echo "make test   lint, types, layers and all tests but the slow ones, $(WORKERS) at a time (WORKERS=0: one by one)"
	@echo "make web    the libraries of the page by which browsers join, from npm (Node.js 20 or newer)"
	@echo "make slow   the slow tests: many repeats, real data of ../shared/data where it is there"
	@echo "make docs   the site of docs/, into site/: python3 -m http.server --directory site shows it"
	@echo "make pictures  every state of the dashboard and of the page for phones, light and dark, into pictures/"
	@echo "make release  wheel, sdist, npm package, build files, bill of materials, checksums, into dist/release"
	@echo "make clean  remove the environment and what was run"

$(BIN)/python:
	@echo "== making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade pip # that of Python 3.11 takes a minute to choose what the tests need, this one 25 s

$(VENV)/.demo: $(BIN)/python pyproject.toml
	@echo "== installing device-runtime with what the demo needs (no torch)"
	@$(PIP) -e '.[simulation]'
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml
	@echo "== installing torch 2.13.0, then device-runtime with everything the tests need"
	@$(PIP) torch==2.13.0
	@$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.demo

# Where Node.js is not installed, what needs it is skipped, and says so.
web/vendor/.whole: web/package-lock.json web/vendor.js
	@echo "== fetching the libraries of the page by which browsers join (npm)"
	@if ! command -v npm > /dev/null; then \
	  echo "   npm is not installed: tests of the browser's side will be skipped"; \
	elif (cd web && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error && node vendor.js); then \
	  touch $@; \
	else \
	  echo "   npm could not fetch them: tests of the browser's side will be skipped"; \
	fi

# The modules of the page as one file each for the page and its worker.
web/vendor/bundled/inputs.json: web/vendor/.whole web/bundle.js $(shell find web/page web/device web/*.js -name '*.js')
	@if [ -e web/vendor/.whole ]; then cd web && npm run --silent bundle; fi

web: web/vendor/bundled/inputs.json

demo: $(VENV)/.demo
	@echo "== running the demo"
	@$(BIN)/device-runtime demo $(DEMO)

check: lint
	@echo "== running the quick tests"
	@$(PYTEST) -m "not slow" --quick -n auto

test:
	@$(MAKE) --no-print-directory -j2 lint compiled web
	@echo "== running the tests"
	@$(PYTEST) -m "not slow" -n $(WORKERS)

lint: $(VENV)/.dev
	@echo "== lint (ruff), types (mypy strict), layers (import-linter)"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

# Otherwise each worker would compile all tests and the libraries that they import. Errors are shown by the tests.
compiled: $(VENV)/.dev
	@$(PYTEST) --collect-only -qq > /dev/null || true

$(VENV)/.slow: $(VENV)/.dev
	@$(PIP) -e '.[docs,mutation,ray,release]'
	@touch $@

slow: $(VENV)/.slow compiled web
	@echo "== running the slow tests"
	@$(PYTEST) -m slow -n $(WORKERS)

$(VENV)/.docs: $(VENV)/.demo
	@echo "== installing what makes the site"
	@$(PIP) -e '.[docs]'
	@touch $@

# Strict: a broken link, a missing anchor or a page that the navigation lacks is an error.
docs: $(VENV)/.docs
	@echo "== building the site into site/"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# Needs Chromium, which `.venv/bin/python -m playwright install chromium` fetches.
pictures: $(VENV)/.dev web
	@echo "== pictures of the dashboard and of the page for phones into pictures/"
	@SCREENSHOTS=$(CURDIR)/pictures $(BIN)/python -m pytest -q -rs -m "slow or not slow" \
	  tests/aggregator/http/test_dashboard_look.py tests/web/test_page_look.py

$(VENV)/.release: $(VENV)/.demo
	@echo "== installing what makes a release"
	@$(PIP) -e '.[release]'
	@touch $@

release: $(VENV)/.release web
	@echo "== making a release of the newest commit in dist/release"
	@rm -rf dist/release
	@$(BIN)/python deploy/release.py dist/release
	@cat dist/release/SHA256SUMS

clean:
	rm -rf $(VENV) runs site build dist *.egg-info web/node_modules web/vendor
