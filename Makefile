# Each target sets up .venv by itself, from a bare Python 3.11 to 3.13.
#   make demo                                   the main job
#   make test                                   lint and the suite on TensorFlow
#   make test BACKENDS="tensorflow jax torch"   the suite on each
#   make readme                                 the table of all models in README.md
PYTHON ?= $(firstword $(shell for name in python3.11 python3.12 python3.13 python3; do \
	$$name -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& echo $$name; done))
BACKENDS ?= tensorflow
BIN := .venv/bin
comma := ,
empty :=
space := $(empty) $(empty)
extras = $(subst $(space),$(comma),$(strip test $(filter jax torch,$(BACKENDS))))

.PHONY: demo test lint readme clean

demo: .venv/.demo
	@$(BIN)/dualnet demo

test: lint
	@set -e; for backend in $(BACKENDS); do \
		echo "== $$backend"; \
		KERAS_BACKEND=$$backend $(BIN)/python -m pytest -q --numprocesses 2 --dist loadfile tests; \
	done

lint: .venv/.$(extras)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo "run: ruff format ."; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache | tail -n 4

readme: .venv/.demo
	@$(BIN)/python benchmarks/model_table.py

# One stamp for each set of packages, made anew when their list changes.
.venv/.demo: setup.cfg pyproject.toml | .venv
	@echo "Installing dualnet into .venv (once; some minutes) ..."
	@$(BIN)/pip install --quiet --editable .
	@touch $@

.venv/.$(extras): setup.cfg pyproject.toml | .venv
	@echo "Installing dualnet[$(extras)] into .venv (once; some minutes) ..."
	@$(BIN)/pip install --quiet --editable ".[$(extras)]"
	@touch $@

.venv:
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11, 3.12 or 3.13 on the PATH; give one with PYTHON=..."; exit 2; }
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --upgrade pip

clean:
	rm -rf .venv build dist *.egg-info demo
