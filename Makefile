# Every target does its own set-up: a .venv of any Python from 3.11 to 3.14, filled by uv and synced when the pins change.
# PYTHON=python3.13 chooses the interpreter and makes a new .venv when the present one has another version.
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.7
PYTHONS := python3.11 python3.12 python3.13 python3.14 python3 python
READY := $(VENV)/.ready
PINNED := $(VENV)/.pinned
VERSION_OF = $(shell $(1) -c 'import sys; print(*sys.version_info[:2], sep=".")' 2>/dev/null)

export RAY_USAGE_STATS_ENABLED := 0

.PHONY: demo test test-cluster chaos lint coverage evidence publish dist lock upgrade clean FORCE
.PHONY: bench bench-scoring bench-runner bench-prepare bench-analysis bench-train bench-gpu bench-schedule

ifdef PYTHON
ifneq ($(call VERSION_OF,$(PYTHON)),$(call VERSION_OF,$(BIN)/python))
$(PINNED): FORCE
endif
endif

$(PINNED): requirements.lock
	@[ -z "$(PYTHON)" ] && $(BIN)/python -c 'import pip' 2>/dev/null || { \
	  for candidate in $(or $(PYTHON),$(PYTHONS)); do \
	    $$candidate -c 'import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null \
	      && python=$$candidate && break; \
	  done; \
	  [ -n "$$python" ] || { echo "no Python 3.11 to 3.14 with venv among: $(or $(PYTHON),$(PYTHONS)); install one, such as" \
	    "with 'apt install python3 python3-venv' or 'uv python install 3.13', or name one with PYTHON=path." >&2; exit 1; }; \
	  echo "making $(VENV) with $$($$python --version); the first time downloads some gigabytes (torch)"; \
	  $$python -m venv --clear $(VENV); \
	}
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@echo "installing $$(grep -c == requirements.lock) pinned packages into $(VENV), then compiling them: a minute or two"
	$(BIN)/uv pip sync --compile-bytecode --python $(BIN)/python requirements.lock
	touch $@

$(READY): $(PINNED) pyproject.toml
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	touch $@

demo: $(READY)  ## the main job on the embedded glyphs data
	$(BIN)/gd-ray demo

test: $(READY)
	$(BIN)/python -m pytest

test-cluster: $(READY)  ## the batch scripts on two hosts under a real Slurm; needs root and Slurm, some minutes
	$(BIN)/python -m pytest -rs tests/cluster/on_slurm.py

chaos: $(READY)  ## faults by a seeded plan; RUNS=100 SEED=0 FAULTS=gcs,host FOLDER=build/chaos; a minute a run
	$(BIN)/python -m tests.chaos.campaign $(if $(RUNS),--runs $(RUNS)) $(if $(SEED),--seed $(SEED)) \
	  $(if $(FAULTS),--faults $(FAULTS)) $(if $(FOLDER),--folder $(FOLDER))

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

coverage: $(READY)  ## all tests, then the share of lines that the test process itself ran (not Ray's workers)
	$(BIN)/python -m pytest --cov --cov-report=term-missing

evidence: $(READY)  ## the tables and figures of evidence, from the Parquet under analysis/evidence
	$(BIN)/python -m analysis.evidence.build

publish: $(READY)  ## add finished trials to the evidence: make publish FROM=results
	$(BIN)/python -m analysis.evidence.publish $(FROM)

bench: bench-scoring bench-runner bench-prepare bench-analysis bench-train  ## every benchmark; each prints ratios measured in one run

bench-scoring: $(READY)
	$(BIN)/python tests/benchmarks/bench_scoring.py

bench-runner: $(READY)
	$(BIN)/python tests/benchmarks/bench_runner.py

bench-prepare: $(READY)  ## on JPEGs of your own with JPEGS=folder of Parquet
	$(BIN)/python tests/benchmarks/bench_prepare.py $(JPEGS)

bench-analysis: $(READY)
	$(BIN)/python tests/benchmarks/bench_analysis.py

bench-schedule: $(READY)  ## a simulation: what waves of trials leave idle on 8 and 64 GPUs
	$(BIN)/python tests/benchmarks/simulate_schedule.py

bench-train: $(READY)
	$(BIN)/python tests/benchmarks/bench_train.py

bench-gpu: $(READY)  ## on a GPU where there is one, else the same table at a tiny size on a CPU
	$(BIN)/python tests/benchmarks/bench_gpu.py

dist: $(READY)  ## a wheel and a source distribution
	$(BIN)/uv build --quiet --python $(BIN)/python --no-build-isolation

# One set of versions for every supported Python and platform, without the address of any index.
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest --extra dev \
  --no-emit-index-url --no-header --no-annotate pyproject.toml --output-file requirements.lock

lock: $(READY)  ## pin what pyproject.toml has gained; other pins stay
	$(COMPILE)

upgrade: $(READY)  ## pin the newest versions within the bounds of pyproject.toml
	$(COMPILE) --upgrade

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage* build dist *.egg-info
