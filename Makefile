# `make demo`, `make check` (quick), `make test` (everything) and `make docs` (the site). Each makes .venv with what it needs.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet

# Files whose tests take a second or two each: what to run after every change.
QUICK := api augment batches config encoder formats gmm kmeans masking memory metrics mfcc plan position predictor \
	progress reservoir superb_entries superb_heads superb_metrics table targets torch_private

.PHONY: setup demo check test lint docs clean

setup: .venv/.dev

.venv/.made:
	@echo "Installing into .venv; torch is large, so the first time takes a while"
	$(PYTHON) -m venv .venv
	$(PIP) --upgrade pip
	touch $@

.venv/.demo: .venv/.made pyproject.toml
	$(PIP) --editable '.[demo]'
	touch $@

.venv/.dev: .venv/.made pyproject.toml
	$(PIP) --editable '.[dev]'
	touch $@ .venv/.demo

demo: .venv/.demo
	$(BIN)/sjepa demo

lint: .venv/.dev
	$(BIN)/ruff format --check src tests examples benchmarks docs/reference.py
	$(BIN)/ruff check src tests examples benchmarks docs/reference.py
	$(BIN)/mypy

check: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(QUICK:%=tests/test_%.py)

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

docs: .venv/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The site is in build/site/index.html"

# What a user trained, in runs/, stays.
clean:
	rm -rf .venv build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +
