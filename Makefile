# Two commands matter: `make demo` shows the tool at work, `make test` runs the tests. Both set everything up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# One decode step that is safe and one that replays wrongly: exit code 1, an unsafe step, is part of the show.
DEMO_TARGETS := fixtures/targets/clean_decoder.py fixtures/targets/int_position.py
CAPTURELINT := $(BIN)/python -m capturelint
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export OMP_NUM_THREADS ?= 1

.PHONY: help demo test lint coverage bench docs clean

help:
	@echo "make demo    check and verify the decode steps in fixtures/targets (no GPU needed)"
	@echo "make test    run the tests"
	@echo "make lint    ruff and mypy"
	@echo "make coverage  run the tests and say which lines they miss, subprocesses included"
	@echo "make bench   measure check against the promises of docs/measurements.md; BENCH_ARGS chooses what on"
	@echo "make docs    build the documentation into site/"
	@echo "make clean   remove the virtual environment and what was built"

# Reinstalled only when what is to be installed changes, so a second run starts at once.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "error: Python 3.10 or newer is needed; name one with PYTHON=..." >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test,verify,report,lsp]'
	@touch $@

demo: $(STAMP)
	@echo '$$ capturelint check fixtures/targets'
	@$(CAPTURELINT) check fixtures/targets || test $$? -eq 1
	@for target in $(DEMO_TARGETS); do \
	  echo; echo "$$ capturelint verify $$target --device emulated --buckets 1,2,4"; \
	  $(CAPTURELINT) verify $$target --device emulated --buckets 1,2,4 || test $$? -eq 1 || exit 2; \
	done

test: $(STAMP)
	$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadfile $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

coverage: $(STAMP)
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n auto --maxprocesses 8 --dist loadfile $(PYTEST_ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

bench: $(STAMP)
	$(BIN)/python benchmarks/check_speed.py $(BENCH_ARGS)

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict

$(VENV)/.docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	@touch $@

clean:
	rm -rf $(VENV) site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
