# Each target makes its own environment in .venv; nothing else on the machine changes.
# Packages are installed again only when pyproject.toml or constraints.txt change.

.DEFAULT_GOAL := help
.PHONY: help test lint laws bench crossover readme

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

test: .venv/.dev ## run every test: laws, saboteurs, golden values, README snippets
	$(BIN)/pytest -n 2

lint: .venv/.dev ## check style, types, import directions and that README.md is up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/readme.py --check

laws: .venv/.core ## judge every mechanism by the laws: the capability table
	$(BIN)/anyformer laws

bench: .venv/.dev ## time every mechanism against its peers on this machine
	$(BIN)/python bench/mechanisms.py

crossover: .venv/.core ## find out from which length on each mechanism pays on this machine
	$(BIN)/python bench/crossover.py

readme: .venv/.core ## bring the tables of README.md up to date
	$(BIN)/python tools/readme.py

.venv/.core: pyproject.toml constraints.txt
	@python=$$(for name in python3.11 python3 python3.12 python3.13 python3.14; do \
		$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done); \
	test -n "$$python" || { echo "anyformer needs Python 3.11 or newer, and none was found" >&2; exit 1; }; \
	test -x $(BIN)/pip || { echo "Making .venv with $$($$python --version) ..."; $$python -m venv --clear .venv; }
	@echo "Installing anyformer and torch into .venv (minutes, the first time) ..."
	@$(PIP) hatchling editables
	@$(PIP) --no-build-isolation --editable .
	@touch $@

.venv/.dev: .venv/.core
	@echo "Installing the test tools and the peers into .venv ..."
	@$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@
