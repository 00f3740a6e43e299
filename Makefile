# Main commands: `make demo` and `make test`; most other targets are parts of them.
# PYTHON  Python 3.11 for the environment                 SEEDS, CONTACT  a crawl of the public web instead of the site
# BASE  base model of `make finetune`, also a Hugging Face folder; default: the newest of the demo, or a small one
# VERSION  version of the artifacts of the demo              SLUICE_HOME, SLUICE_*_PORT  see docs/demo.md
# WORKERS  processes for unit tests, default 4               SLUICE_TEST_TIMES  a folder for the seconds of each test

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TESTABLE := $(VENV)/.testable
ORACLES := $(VENV)/oracles
TIMES := $(VENV)/.times
PYTEST := $(BIN)/python -m pytest
COMPILE = $(BIN)/python -m compileall -qq -j 0 -x '/tests/' $(VENV)/lib || true
PYTHON ?= $(firstword $(foreach name,python3.11 python3 python,$(shell \
	$(name) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && echo $(name))))

WORKERS ?= 4

# Tests and tasks start hundreds of Python processes, which would otherwise compile the same modules again and again.
unexport PYTHONDONTWRITEBYTECODE

export SLUICE_MODELS ?= $(abspath $(or $(SLUICE_HOME),.sluice)/models)

.DEFAULT_GOAL := help
SBOM := $(BIN)/python -m uv tool run --quiet --from cyclonedx-bom==7.5.0 cyclonedx-py
AUDIT := $(BIN)/python -m uv tool run --quiet --from pip-audit==2.10.1 pip-audit
DIST ?= dist
ADVISORIES := https://pypi.org/pypi/pip/24.0/json

.PHONY: help install models demo finetune up down status docs pictures wheel sbom test lint audit unit oracles system soak kind kind-down clean

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo '  make demo SEEDS=my_seeds.txt CONTACT=https://your.page   the same on the public web'

install: $(INSTALLED) ## make .venv and install requirements.txt

$(VENV)/bin/python:
	@test -n '$(PYTHON)' || { echo 'sluice: Python 3.11 is needed and not on PATH. Name it: make PYTHON=/path/to/python3.11'; exit 2; }
	$(PYTHON) -m venv $(VENV)

# With this stamp, a second `make demo` does not run pip again. pip compiles 28,000 modules in one process, which takes
# longer than to install them; compileall uses all cores. Some packages contain templates that do not compile.
$(INSTALLED): requirements.txt pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-compile --requirement requirements.txt
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --editable .
	@$(COMPILE)
	@touch $@

$(TESTABLE): tests/requirements.txt $(INSTALLED)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-compile --requirement tests/requirements.txt
	@$(COMPILE)
	@touch $@

pictures: $(TESTABLE) models ## the pictures of README and documentation, from a run of smoke
	mkdir -p docs/pictures
	SLUICE_PICTURES='$(abspath docs/pictures)' $(PYTEST) tests/system/test_pages.py -k pictures

docs: $(TESTABLE) ## the documentation as a site, in .site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

models: $(INSTALLED) ## fetch the language-identification model
	$(BIN)/python -m tasks.filters.pretrained

demo: models ## seeds to a trained model on this machine, through Airflow
	@SEEDS='$(SEEDS)' CONTACT='$(CONTACT)' $(BIN)/python -m tasks.demo run --version '$(VERSION)'

finetune: models ## PDF files to a fine-tuned model: chunks, adapters, scores, an answer with its page
	@BASE='$(BASE)' $(BIN)/python -m tasks.demo finetune

up: $(INSTALLED) ## start Airflow, MLflow, Dask and the demo's site
	@$(BIN)/python -m tasks.demo up

down: ## stop them all
	@test ! -x $(BIN)/python || $(BIN)/python -m tasks.demo down

status: $(INSTALLED) ## show the running services
	@$(BIN)/python -m tasks.demo status

wheel: $(TESTABLE) ## the wheel and its bill of materials, in dist/; SIGN=~/.ssh/id_ed25519 signs both with this key
	$(BIN)/python -m uv build --quiet --wheel --out-dir $(DIST) .
	@$(MAKE) --no-print-directory sbom
	@test -z '$(SIGN)' || for file in $(DIST)/sluice-*.whl $(DIST)/sluice.cdx.json; do \
	  rm -f "$$file.sig"; ssh-keygen -q -Y sign -f $(SIGN) -n file "$$file" || exit; done

# Reproducible: no time and no random number.
sbom: $(TESTABLE) ## dist/sluice.cdx.json: the packages of requirements.txt in the format of CycloneDX
	@mkdir -p $(DIST)
	$(SBOM) requirements requirements.txt --pyproject pyproject.toml --mc-type application --output-reproducible \
	  --output-file $(DIST)/sluice.cdx.json

# All parts run even if one fails; the failed ones are listed at the end.
test: ## all checks and tests, with their durations
	@rm -rf $(TIMES)
	@failed=; for part in lint unit oracles system; do \
	  SLUICE_TEST_TIMES='$(abspath $(TIMES))' $(MAKE) --no-print-directory $$part || failed="$$failed $$part"; done; \
	  $(BIN)/python -m tests.times $(TIMES); \
	  test -z "$$failed" || { echo "make test: failed:$$failed"; exit 1; }

lint: $(TESTABLE) ## style, types, import rules, spelling, links of the documentation
	@echo 'sluice: lint takes 1 to 2 minutes on two cores: ruff, mypy, import rules, circles, spelling, links, advisories'
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2
	PYTHONPATH=plugins $(BIN)/lint-imports
	$(BIN)/python -m tests.test_structure
	$(BIN)/codespell
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir $(VENV)/.docs
	@timeout 300 $(MAKE) --no-print-directory audit || echo 'sluice: make audit failed, see above; lint passes, since advisories come without a change of the code'

# pip-audit asks PyPI about each package; a mirror without PyPI's JSON knows no advisories, and would pass everything.
audit: $(TESTABLE) ## known vulnerabilities of the packages in requirements.txt
	@if $(BIN)/python -c 'import sys, urllib.request as r; r.urlopen(sys.argv[1], timeout=10)' $(ADVISORIES) 2>/dev/null; \
	  then $(AUDIT) --requirement requirements.txt --no-deps --disable-pip --progress-spinner off; \
	  else echo 'sluice: no registry answers with advisories: pip-audit is skipped'; fi

# Tests wait half of the time: on two cores, four workers need 11 minutes and two need 14. Workers get tests in the
# order of files and steal work when idle: a file with one long test delays no other, and most fixtures of a module are
# created once. A test that hangs fails by its name after 15 minutes; the slowest takes two.
unit: $(TESTABLE) models ## unit tests: seconds to minutes
	$(PYTEST) -m 'not system and not soak and not oracle' -n $(WORKERS) --dist worksteal --timeout 900

# A .pth file makes the packages of .venv available, so only missing ones are installed, and .venv does not change.
$(ORACLES)/.installed: tests/oracles.txt $(TESTABLE)
	rm -rf $(ORACLES)
	$(BIN)/python -m venv $(ORACLES)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$($(ORACLES)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/sluice.pth"
	$(ORACLES)/bin/python -m pip install --disable-pip-version-check --quiet --requirement tests/oracles.txt
	@npm install --silent --no-audit --no-fund --prefix $(VENV)/azurite azurite@3.35.0 >$(VENV)/.azurite.log 2>&1 \
	  || echo 'sluice: azurite could not be installed ($(VENV)/.azurite.log): no tests of ADLS'
	@touch $@

oracles: $(ORACLES)/.installed models ## compare with trl, PEFT, bitsandbytes and lm-eval; stores on ADLS and GCS; lakes
	$(ORACLES)/bin/python -m pytest -m 'oracle and not soak' $$(grep -rl --include='test_*.py' pytest.mark.oracle tests | sort)
	$(ORACLES)/bin/python -m pytest -m 'oracle and not soak' tests/stores

# Two calls: the tests in k8s/ set their own Airflow home, which the stack must not inherit.
system: $(TESTABLE) models ## system tests with the real Airflow, MLflow, Dask and a browser
	$(PYTEST) -m 'system and not soak' tests/system
	$(PYTEST) -m 'system and not soak' tests/k8s

# Property tests run with many more examples, random in each run; the order of tests is random, too.
soak: $(TESTABLE) $(ORACLES)/.installed models ## long tests; not part of `make test`
	@tests/kenlm.sh >$(VENV)/.kenlm.log 2>&1 || echo 'sluice: KenLM could not be built ($(VENV)/.kenlm.log): no comparison with it'
	$(PYTEST) -p randomly -m 'soak and not system or hypothesis' --hypothesis-profile=soak -n $(WORKERS) --dist worksteal
	$(ORACLES)/bin/python -m pytest -m 'soak and oracle' tests/stores $$(grep -rl --include='test_*.py' pytest.mark.oracle tests | sort)
	$(PYTEST) -m 'soak and system' tests/system
	$(PYTEST) -m 'soak and system' tests/install

kind: ## Sluice on a Kubernetes inside Docker; needs docker, kind, kubectl, helm
	@k8s/kind.sh up

kind-down: ## remove that Kubernetes and all its data
	@k8s/kind.sh down

clean: down ## delete all data of the demo; the environment stays
	rm -rf .sluice .site $(TIMES) .mypy_cache .ruff_cache .import_linter_cache .hypothesis
