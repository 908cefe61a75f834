# `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CODE := src tests demo examples
# What asks the database something: it runs on the embedded version in `make test` and on version 15 in `make proofs`.
ON_POSTGRES := $(addprefix tests/integration/,agents api caches cluster dispatch identity intake lifecycle logs \
  maintenance pipeline store)
export JOBS AGENTS SEED MINUTES KEEP
export PATH := $(CURDIR)/$(BIN):$(PATH)
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo up test check format traps examples bench proofs chaos soak mutants clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Use
demo: $(VENV)/run ## start everything, push a commit, watch its run (KEEP=1 leaves it up)
	@$(BIN)/python -m demo $(if $(KEEP),--keep)

up: $(VENV)/run ## start an orchestrator, its database and an agent; Ctrl-C stops them
	@$(BIN)/kici up

##@ Develop
# Tests wait for processes about as long as they compute, so three share two cores.
test: $(VENV)/dev ## every test (ARGS="-k name" narrows)
	@$(BIN)/pytest -n 3 --dist worksteal -m "not proof" $(ARGS)

check: $(VENV)/dev ## ruff, mypy --strict, import-linter
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

format: $(VENV)/dev ## let ruff put the code in order
	@$(BIN)/ruff check --fix $(CODE)
	@$(BIN)/ruff format $(CODE)

traps: $(VENV)/dev ## every trap of the tables names a test that shows it, or why it does not apply
	@$(BIN)/python -m tests.traps

examples: $(VENV)/dev ## compile, preview and run every example, here and on an agent (ONLY=name,name)
	@$(BIN)/python -m tests.examples $(if $(ONLY),--only $(ONLY))

bench: $(VENV)/bench ## measure (ONLY=name,name); writes build/bench.json
	@$(BIN)/python -m tests.bench $(if $(ONLY),--only $(ONLY))

proofs: $(VENV)/dev ## the long proofs, in a short form
	@$(BIN)/pytest -n 2 -m proof $(ARGS)
	@KICI_TEST_POSTGRES=15 $(BIN)/pytest -n 2 --dist worksteal -m "not proof" $(ARGS) $(ON_POSTGRES)

chaos: $(VENV)/dev ## kill -9 everything while 2,000 jobs run (JOBS, AGENTS, SEED, MINUTES; KEEP=1 leaves the database)
	@$(BIN)/python -m tests.chaos

soak: $(VENV)/dev ## play the model of the lifecycle for MINUTES=n (10), with SEED=s as an earlier run did
	@$(BIN)/python -m tests.integration.model --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED))

mutants: $(VENV)/dev ## take out fence after fence and show the test that notices (ONLY=name,name)
	@$(BIN)/python -m tests.mutants -j 2 $(if $(ONLY),--only $(ONLY))

clean: ## remove what these targets made
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kici needs Python 3.11 or newer")'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet 'uv>=0.5'

$(VENV)/run: $(VENV)/bin/uv pyproject.toml
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --editable '.[orchestrator]'
	@touch $@

$(VENV)/bench: $(VENV)/dev
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --group bench
	@touch $@

$(VENV)/dev: $(VENV)/run
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --group dev
	@touch $@
