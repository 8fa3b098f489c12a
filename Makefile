# The commands a newcomer needs. `make up` starts a gateway, `make test` runs every test; both set up what they need,
# and are quick the second time. Packages come from the pinned, hashed lock files only.

SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
ARGS ?=

# Tests are compiled anew in every run unless what was compiled may be kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: up test quick test-user lint smoke bench crash mutants clients locks clean

up: $(VENV)/.installed
	@exec $(BIN)/tidegate up $(ARGS)

test: $(VENV)/.installed-dev
	@tools/need_programs.sh
	@$(BIN)/python tools/run_tests.py $(ARGS)

# For use while working: tests/project/quick.py says what is chosen. In one process, since a second one would spend as
# much time on imports and collection as it saves on the tests.
quick: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -q -p no:xdist --quick $(ARGS)

# The tests of sandboxes once more, for whoever runs the others as root.
test-user: $(VENV)/.installed-dev
	@tools/need_programs.sh
	@tools/test_as_user.sh $(BIN)/python $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/project_lint.py
	$(BIN)/python tools/behaviours.py --check
	$(BIN)/python tools/generate.py --check
	$(BIN)/python tools/mutants.py --check

smoke:
	@$(or $(PYTHON),python3) tools/smoke.py

bench: $(VENV)/.installed-dev
	$(BIN)/python -m bench $(ARGS)

crash: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q tests/crash $(ARGS)

mutants: $(VENV)/.installed-dev
	$(BIN)/python tools/mutants.py $(ARGS)

# Installs foreign programs into .clients/ and runs them against a gateway: docs/clients.md. Without names, also runs the
# reference servers and the conformance suite of MCP.
clients: $(VENV)/.installed-dev
	@$(BIN)/python -m tests.clients $(ARGS)
	@$(if $(ARGS),,$(BIN)/python -m tests.clients.mcp_reference)

$(VENV)/.python:
	@tools/make_venv.sh $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.python requirements.lock requirements-build.lock pyproject.toml
	@echo "Installing Tidegate into $(VENV)."
	@$(PIP) install --require-hashes -r requirements.lock -r requirements-build.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q src
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements-dev.lock
	@echo "Installing what the tests need into $(VENV)."
	@$(PIP) install --require-hashes -r requirements-dev.lock
	@touch $@

# Needs uv (https://docs.astral.sh/uv/); only for those who change a dependency.
LOCK := uv pip compile --quiet --python-version 3.11 --universal --generate-hashes \
	--no-emit-index-url --no-annotate --no-header
locks:
	$(LOCK) pyproject.toml -o requirements.lock > /dev/null
	$(LOCK) pyproject.toml --extra chat --extra images --extra mcp --extra vectors --extra web --group dev -c requirements.lock -o requirements-dev.lock > /dev/null
	printf "hatchling\neditables\n" | $(LOCK) - -o requirements-build.lock > /dev/null

clean:
	rm -rf $(VENV) .clients .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist
