# Each target makes its own environment in .venv; nothing else on the machine changes.
# Packages are installed again only when pyproject.toml or constraints.txt change.

.DEFAULT_GOAL := help
.PHONY: help test lint smoke laws bench crossover docs

BIN := .venv/bin

# pip says nothing but errors; a line every 20 seconds tells that it is still at work.
define install
@(waited=0; while sleep 20 </dev/null >/dev/null 2>&1; kill -0 $$$$ 2>/dev/null; do \
	waited=$$((waited + 20)); echo "  still installing after $$waited s ..."; done) & beat=$$!; \
$(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt $(1); \
status=$$?; kill $$beat 2>/dev/null; exit $$status
endef

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

test: .venv/.dev ## run every test: laws, saboteurs, golden values, README snippets
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

lint: .venv/.dev ## check style, types, import directions and that the generated documentation is up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/docs.py --check

smoke: .venv/.core ## run every study at its smallest size, in a minute
	rm -rf build/smoke
	$(foreach study,$(basename $(notdir $(wildcard src/anyformer/studies/[!_]*.py))),$(BIN)/anyformer study $(study) \
		--preset smoke --seeds 1 --record build/smoke/$(study).jsonl --work build/smoke/$(study) &&) true

laws: .venv/.core ## judge every mechanism by the laws: the capability table
	$(BIN)/anyformer laws

bench: .venv/.dev ## time every mechanism against its peers on this machine
	$(BIN)/python bench/mechanisms.py

crossover: .venv/.report ## find out from which length on each mechanism pays on this machine
	$(BIN)/anyformer crossover

docs: .venv/.report ## bring the generated documentation up to date: tables of README.md, docs/mechanisms.md, docs/bench.md
	$(BIN)/python tools/docs.py

.venv/.core: pyproject.toml constraints.txt
	@python=$$(for name in python3.11 python3 python3.12 python3.13 python3.14; do \
		$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done); \
	test -n "$$python" || { echo "anyformer needs Python 3.11 or newer, and none was found" >&2; exit 1; }; \
	test -x $(BIN)/pip || { echo "Making .venv with $$($$python --version) ..."; $$python -m venv --clear .venv; }
	@echo "Installing anyformer and torch into .venv (minutes, the first time) ..."
	$(call install,hatchling editables)
	$(call install,--no-build-isolation --editable .)
	@touch $@

.venv/.report: .venv/.core
	@echo "Installing what draws the page into .venv ..."
	$(call install,--no-build-isolation --editable '.[report]')
	@touch $@

.venv/.dev: .venv/.core
	@echo "Installing the test tools and the peers into .venv ..."
	$(call install,--no-build-isolation --editable '.[dev]')
	@touch $@
