# Two commands: `make demo` and `make test`. Everything else is a part of them.
# PYTHON  the Python 3.11 that makes the environment      SEEDS, CONTACT  a crawl of the public web instead of the site
# VERSION  version of the artifacts of the demo              SLUICE_HOME, SLUICE_*_PORT  see docs/demo.md

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TESTABLE := $(VENV)/.testable
PYTHON ?= $(firstword $(foreach name,python3.11 python3 python,$(shell \
	$(name) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && echo $(name))))

export SLUICE_MODELS ?= $(abspath $(or $(SLUICE_HOME),.sluice)/models)

.DEFAULT_GOAL := help
.PHONY: help install models demo up down status test lint unit system soak kind kind-down clean

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo '  make demo SEEDS=my_seeds.txt CONTACT=https://your.page   the same on the public web'

install: $(INSTALLED) ## make .venv and install what requirements.txt pins

$(VENV)/bin/python:
	@test -n '$(PYTHON)' || { echo 'sluice: Python 3.11 is needed and not on PATH. Name it: make PYTHON=/path/to/python3.11'; exit 2; }
	$(PYTHON) -m venv $(VENV)

# The stamp keeps the second `make demo` from asking pip again.
$(INSTALLED): requirements.txt pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --requirement requirements.txt
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --editable .
	@touch $@

$(TESTABLE): tests/requirements.txt $(INSTALLED)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --requirement tests/requirements.txt
	@touch $@

models: $(INSTALLED) ## fetch the language-identification model
	$(BIN)/python -m tasks.filters.pretrained

demo: models ## seeds to a trained model on this machine, through Airflow
	@SEEDS='$(SEEDS)' CONTACT='$(CONTACT)' $(BIN)/python -m tasks.demo run --version '$(VERSION)'

up: $(INSTALLED) ## start Airflow, MLflow, Dask and the demo's site
	@$(BIN)/python -m tasks.demo up

down: ## stop them all
	@test ! -x $(BIN)/python || $(BIN)/python -m tasks.demo down

status: $(INSTALLED) ## show what runs
	@$(BIN)/python -m tasks.demo status

test: lint unit system ## everything that must be true

lint: $(TESTABLE) ## style, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=plugins $(BIN)/lint-imports

unit: $(TESTABLE) models ## tests of the parts: seconds to minutes
	$(BIN)/python -m pytest -m 'not system and not soak' -n auto --maxprocesses=4 --dist loadfile

system: $(TESTABLE) models ## tests of the whole with the real Airflow, MLflow, Dask and a browser
	$(BIN)/python -m pytest -m 'system and not soak' tests/system
	$(BIN)/python -m pytest -m 'system and not soak' tests/k8s

soak: $(TESTABLE) models ## tests that take long by nature; no part of `make test`
	$(BIN)/python -m pytest -m soak tests

kind: ## Sluice on a Kubernetes inside Docker; needs docker, kind, kubectl, helm
	@k8s/kind.sh up

kind-down: ## remove that Kubernetes and all that is in it
	@k8s/kind.sh down

clean: down ## forget everything the demo made; the environment stays
	rm -rf .sluice .mypy_cache .ruff_cache .import_linter_cache .hypothesis
