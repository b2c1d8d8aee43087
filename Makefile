# Every target does its own set-up: a .venv made with uv, rebuilt only when the pins change.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.7
READY := $(VENV)/.ready

export RAY_USAGE_STATS_ENABLED := 0

.PHONY: demo test lint evidence bench bench-scoring bench-runner bench-prepare bench-analysis bench-train lock clean

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	$(BIN)/uv pip sync --quiet --compile-bytecode --python $(BIN)/python requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	touch $@

demo: $(READY)  ## the main job on the embedded glyphs data
	$(BIN)/gd-ray demo

test: $(READY)
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

evidence: $(READY)  ## the README's tables and figures of evidence, from the Parquet under analysis/evidence
	$(BIN)/python -m analysis.readme

bench: bench-scoring bench-runner bench-prepare bench-analysis bench-train  ## every benchmark; each prints ratios measured in one run

bench-scoring: $(READY)
	$(BIN)/python tests/benchmarks/bench_scoring.py

bench-runner: $(READY)
	$(BIN)/python tests/benchmarks/bench_runner.py

bench-prepare: $(READY)  ## on JPEGs of your own with JPEGS=folder of Parquet
	$(BIN)/python tests/benchmarks/bench_prepare.py $(JPEGS)

bench-analysis: $(READY)
	$(BIN)/python tests/benchmarks/bench_analysis.py

bench-train: $(READY)
	$(BIN)/python tests/benchmarks/bench_train.py

lock: $(READY)  ## resolve the newest versions again and pin them
	$(BIN)/uv pip compile --quiet --upgrade --python-version 3.11 --extra dev --no-emit-index-url --no-header \
	  --no-annotate pyproject.toml --output-file requirements.lock

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build *.egg-info
