# Each target sets up .venv by itself, from a bare Python 3.11 to 3.13.
#   make demo       train, adapt, compare and serve two small models
#   make test       lint, and the quick tests on TensorFlow
#   make test-all   what `make test` leaves out: the slow tests, the docs, the wheel, JAX, PyTorch
#   make docs       these pages as HTML in docs/_build
#   make newest     quick tests with newer Keras and TensorFlow, if there are any
#   make tables     the table of all models in docs/zoo.md, and the page of claims
PYTHON ?= $(firstword $(shell for name in python3.11 python3.12 python3.13 python3; do \
	$$name -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& echo $$name; done))
BACKENDS ?= jax torch
NOTEBOOKS ?= force
BIN := .venv/bin
comma := ,
PYTEST := $(BIN)/python -m pytest -q --numprocesses 2 --dist worksteal

# A module is compiled when it is first imported, and the result kept. An installation need not do it: all
# of TensorFlow takes half of its time. What tests import is compiled after it, beside what comes next.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all lint docs wheel newest tables clean

demo: .venv/.base
	@$(BIN)/dualnet demo

test: lint
	@echo "== $$(date +%T) tensorflow, quick tests"; $(PYTEST) -m "not slow" tests

# The docs need not run the notebooks: their tests do. They take one core, and the wheel the other.
test-all: .venv/.test,test-all,jax,torch,docs
	@$(MAKE) --no-print-directory --jobs 2 --output-sync NOTEBOOKS=off docs wheel
	@$(MAKE) --no-print-directory newest
	@echo "== $$(date +%T) tensorflow, slow tests"; $(PYTEST) -m slow tests
	@set -e; for backend in $(BACKENDS); do \
		echo "== $$(date +%T) $$backend"; KERAS_BACKEND=$$backend $(PYTEST) tests; \
	done

lint: .venv/.test
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo "run: ruff format ."; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache | tail -n 4
	@$(BIN)/python .ci/code_tokens

docs: .venv/.docs
	@echo "== $$(date +%T) docs"; $(BIN)/python -m sphinx --quiet --nitpicky --fail-on-warning --keep-going \
		-D nb_execution_mode=$(NOTEBOOKS) docs docs/_build
	@echo "The pages are in docs/_build/index.html"

wheel: .venv/.test
	@echo "== $$(date +%T) wheel"; .ci/wheel $(BIN)/python

newest: .venv/.test
	@echo "== $$(date +%T) newest"; .ci/newest $(BIN)/python

tables: .venv/.test
	@$(BIN)/python benchmarks/model_table.py
	@$(BIN)/python benchmarks/claims.py

# One stamp for each extra, made anew when their list changes.
.venv/.base: setup.cfg pyproject.toml .ci/constraints.txt | .venv
	@echo "Installing dualnet into .venv (once; some minutes) ..."
	@$(BIN)/pip install --quiet --no-compile --constraint .ci/constraints.txt --editable .
	@touch $@

.venv/.%: setup.cfg pyproject.toml .ci/constraints.txt | .venv
	@echo "Installing dualnet[$*] into .venv (once; some minutes) ..."
	@$(BIN)/pip install --quiet --no-compile --constraint .ci/constraints.txt --editable ".[$*]"
	@$(BIN)/python -c "import keras_tuner, tests.fixtures" > .venv/compiled.log 2>&1 &
	@touch $@ $(foreach extra,$(subst $(comma), ,$*),.venv/.$(extra))

.venv:
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11, 3.12 or 3.13 on the PATH; give one with PYTHON=..."; exit 2; }
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --upgrade pip

clean:
	rm -rf .venv build dist docs/_build docs/api/names docs/jupyter_execute *.egg-info demo
