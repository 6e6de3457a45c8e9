# Ratchet's common tasks. `make` without a target lists them. All of them use .venv, which the first
# one creates.

SHELL = bash
VENV = .venv
PYTHON = python3
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed
LOCK = requirements/cpu.txt
DOCS_LOCK = requirements/docs.txt
DOCS_STAMP = $(VENV)/.docs-installed
WORKERS = 3
COVERED = 95
UV_COMPILE = $(BIN)/uv pip compile --quiet --no-header --annotation-style line \
	--universal --python-version 3.11 $(UV_ARGS)
# What each line of a lock file would repeat.
EVERYWHERE = platform_machine == 'x86_64' and \
	platform_python_implementation == 'CPython' and sys_platform == 'linux'
ABREAST = -n $(WORKERS) --no-loadscope-reorder
QUICK = -m "not services and not lifecycle and not slow and not gpu"
HEAVY = torch, transformers, vllm, deepspeed, ray, prefect, mlflow, datasets
# Of pip's output: one line for every 25 packages, and one when they are all downloaded.
COUNTED = /^(Collecting|Processing|Requirement already)/ { if (++n % 25 == 0) print "venv: " n " of " all } \
	/^Installing/ { print "venv: unpacking" } { fflush() }
# tests/conftest.py assigns tests to the processes of ABREAST.
# Variables that you can set:
#   TORCH_INDEX  address of a package index with CPU builds of torch
#   PYTEST_ARGS  more options for pytest
#   WORKERS      number of test processes; one of them runs the lifecycle tests
#   UV_ARGS      more options for the resolver, e.g. --upgrade
#   CHAOS_ARGS   options of `make chaos`, e.g. --seed 1 --every 6
#   COVERED      percent of lines that `make coverage` expects

.PHONY: help venv demo test unit coverage drills chaos check format docs screenshots lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

venv: $(STAMP) ## build or update .venv from requirements/cpu.txt

# torch is installed first and with its dependencies, because they differ between its CPU build and
# its CUDA build. The lock file is then installed without dependencies: it is complete, and its header
# lists what is left out on purpose. The imports at the end verify the result.
$(STAMP): $(LOCK) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
		echo "venv: $(LOCK) is for Python 3.11 to 3.13, and $(PYTHON) is" >&2; \
		$(PYTHON) --version >&2; \
		echo "venv: set PYTHON, e.g. 'make venv PYTHON=python3.11'" >&2; exit 1; }
	@test -x $(BIN)/pip || { echo "venv: creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@torch=$$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' $(LOCK)); index="$(TORCH_INDEX)"; \
	echo "venv: installing $$torch"; \
	$(BIN)/pip install -q -c $(LOCK) $${index:+--extra-index-url "$$index"} "$$torch"
	@echo "venv: installing the other packages of $(LOCK) (some minutes)"
	@set -o pipefail; $(BIN)/pip install --no-deps -r $(LOCK) | \
		awk -v all="$$(grep -c '^[^#].*==' $(LOCK))" '$(COUNTED)'
	@echo "venv: installing ratchet itself"
	@$(BIN)/pip install -q --no-deps --no-build-isolation -e .
	@echo "venv: importing $(HEAVY)"
	@$(BIN)/python -W ignore -c "import $(HEAVY)"
	@touch $(STAMP)
	@echo "venv: ready; 'source $(BIN)/activate' puts ratchet on the PATH"

demo: venv ## run the whole lifecycle with a tiny model on this machine
	$(BIN)/ratchet demo

test: venv ## run every test (tests that need a GPU are skipped without one)
	$(BIN)/pytest $(ABREAST) $(PYTEST_ARGS)

unit: venv ## run only the quick tests
	$(BIN)/pytest $(ABREAST) $(QUICK) $(PYTEST_ARGS)

# The limit is of lines: coverage.py's own fail_under would count branches with them.
coverage: venv ## run every test, report lines and branches; fails below COVERED % of lines
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(ABREAST) $(PYTEST_ARGS)
	$(BIN)/coverage combine --quiet
	@rm -f .coverage.*  # files that could not be read: the test of a full disk cuts one short
	@$(BIN)/coverage report | awk '{ print } \
		/^TOTAL/ { found = 100 * (1 - $$3 / $$2) } \
		END { printf "lines: %.1f %%, at least $(COVERED) %% expected\n", found; exit found < $(COVERED) }'

drills: venv ## kill services, and everything at once, during a lifecycle (not part of `make test`)
	$(BIN)/pytest -m drill tests/lifecycle $(PYTEST_ARGS)

chaos: venv ## kill processes of a lifecycle at random until it completes (CHAOS_ARGS: see its --help)
	$(BIN)/python -m benchmarks chaos $(CHAOS_ARGS)

check: venv ## check formatting, lint, types and import rules, run the quick tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/pytest $(ABREAST) $(QUICK) $(PYTEST_ARGS)

format: venv ## format the code and apply safe lint fixes
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

docs: $(DOCS_STAMP) ## build the documentation as a site: build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "docs: build/site/index.html"

screenshots: venv ## take the pictures of docs/images, after `make demo`; needs Chromium
	$(BIN)/python -m website.screenshots

$(DOCS_STAMP): $(DOCS_LOCK) $(STAMP)
	@echo "docs: installing the packages of $(DOCS_LOCK)"
	@$(BIN)/pip install -q --no-deps -r $(DOCS_LOCK)
	@touch $(DOCS_STAMP)

# The resolver keeps the versions of the existing lock files unless UV_ARGS=--upgrade is given. The
# resolver rewrites the files, so the recipe saves the header of each file first and restores it.
# docs.txt is the last, because its packages have the versions of cpu.txt where both have one.
lock: venv ## resolve all lock files in requirements/ again (UV_ARGS=--upgrade updates)
	@for kind in cpu gpu docs; do \
		echo "lock: requirements/$$kind.txt"; \
		lock=requirements/$$kind.txt; \
		header=$$(sed -n '/^#/!q;p' $$lock); \
		overrides=requirements/$$kind-overrides.txt; \
		test -f $$overrides || overrides=; \
		what="pyproject.toml --extra $$kind --extra dev $${overrides:+--overrides $$overrides}"; \
		test $$kind != docs || what="--group docs --constraints $(LOCK)"; \
		$(UV_COMPILE) $$what --output-file $$lock > /dev/null || exit 1; \
		{ printf '%s\n\n' "$$header"; sed "s/ ; $(EVERYWHERE)//; s/ and $(EVERYWHERE)//; s/ *# via/  # via/" $$lock; } > $$lock.new; \
		mv $$lock.new $$lock; \
	done

clean: ## remove caches and build output (keeps .venv and .ratchet)
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage*
	find . \( -name .git -o -path ./$(VENV) -o -name .ratchet \) -prune \
		-o -name __pycache__ -exec rm -rf {} +
