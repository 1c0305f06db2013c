# Every target makes the environment it needs. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SAM_BIN := .venv-sam/bin
UV := .uv/bin/uv
LOCK := $(UV) pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url
# A mirror of PyPI that pip was told of serves uv as well.
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
# Compiled once, also where the environment forbids it.
export PYTHONDONTWRITEBYTECODE :=
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The commands of a team's day come first, in this order.
DAILY := run|chat|test|deploy|smoke
LISTED = grep -hE '^[a-z0-9-]+:.*\#\# ' $(MAKEFILE_LIST)
ALIGNED = awk -F':.*\#\# ' '{printf "  make %-14s %s\n", $$1, $$2}'

help: ## list the targets
	@for name in $(subst |, ,$(DAILY)); do $(LISTED) | grep "^$$name:"; done | $(ALIGNED)
	@echo
	@$(LISTED) | grep -vE '^($(DAILY)):' | $(ALIGNED)

# uv installs packages in a tenth of pip's time: the one of this machine, else one from PyPI.
$(UV): requirements-uv.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": set PYTHON=...") if sys.version_info < (3, 11) else 0'
	@rm -rf .uv && mkdir -p .uv/bin
	@if uv --version >/dev/null 2>&1; then ln -s "$$(command -v uv)" $(UV); else \
		echo "Getting uv (first run only) ..." && $(PYTHON) -m venv .uv && \
		.uv/bin/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements-uv.txt; fi

# `make run` needs a third of what the tests need, which is installed when they are first run.
$(VENV)/.run: requirements-run.txt | $(UV)
	@echo "Setting up $(VENV) to run (first run only) ..."
	@$(MAKE_VENV)
	@$(UV) pip install -q --python $(BIN)/python --require-hashes --no-deps -r requirements-run.txt
	@touch $@

$(VENV)/.dev: requirements-dev.txt | $(UV)
	@echo "Setting up $(VENV) for development (first run only) ..."
	@$(MAKE_VENV)
	@$(UV) pip sync -q --python $(BIN)/python --require-hashes requirements-dev.txt
	@touch $(VENV)/.run $@

MAKE_VENV = [ -x $(BIN)/python ] || $(UV) venv -q --clear --python $(PYTHON) $(VENV); \
	echo "$(CURDIR)/layers/core" > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/omniagent.pth"

# With pip, which the functions' Makefile calls.
.venv-sam/.installed: requirements-sam.txt | $(UV)
	@echo "Setting up .venv-sam (first run only) ..."
	@$(PYTHON) -m venv --clear .venv-sam
	@$(UV) pip install -q --python $(SAM_BIN)/python --require-hashes -r requirements-sam.txt
	@touch $@

.venv-litellm/.installed: requirements-litellm.txt | $(UV)
	@$(UV) venv -q --clear --python $(PYTHON) .venv-litellm
	@$(UV) pip install -q --python .venv-litellm/bin/python --require-hashes -r requirements-litellm.txt
	@touch $@

.venv-openapi/.installed: requirements-openapi.txt | $(UV)
	@$(UV) venv -q --clear --python $(PYTHON) .venv-openapi
	@$(UV) pip install -q --python .venv-openapi/bin/python --require-hashes -r requirements-openapi.txt
	@touch $@

test: $(VENV)/.dev ## run every test; ARGS=tests/http runs a part, COVERAGE=1 measures the coverage as well
ifdef COVERAGE
	@rm -rf .coverage
	@$(BIN)/coverage run -m pytest -n 5 $(ARGS)
	@$(BIN)/coverage combine -q
	@$(BIN)/coverage report
else
	@$(BIN)/python -m pytest -n 5 $(ARGS)
endif

test-agent: $(VENV)/.dev ## run the tests of your own agent only, in seconds: tests/agent
	@$(BIN)/python -m pytest --confcutdir=tests/agent tests/agent $(ARGS)

.PHONY: test-agent

green: $(VENV)/.dev ## run the whole suite 10 times, 2 at once, so that both cores are busy: all have to pass; writes the table of CONTRIBUTING.md (an hour)
	@$(BIN)/python -m scripts.green $(ARGS); code=$$?; $(BIN)/python -m scripts.readme; exit $$code

.PHONY: green

soak: $(VENV)/.dev ## run 1,000 turns through 260 kills, freezes, partitions and slow servers; writes docs/proofs.md (10 minutes)
	@$(BIN)/python -m tests.faults.soak $(ARGS)
	@$(BIN)/python -m scripts.readme

check: $(VENV)/.dev ## lint, format and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(VENV)/.dev ## format the code and apply ruff's fixes
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# Here uv comes from requirements-uv.txt, and pip with .venv-sam.
lock: OWN = --no-emit-package uv --no-emit-package pip
lock: $(UV) ## pin the dependencies of pyproject.toml, with hashes
	@$(LOCK) --upgrade --extra lambda pyproject.toml -o layers/core/requirements.txt
	@# cargo-lambda asks for a compiler of 400 MB that only `cargo lambda build` uses: left out, and nothing is resolved
	@# again when the file is installed.
	@$(LOCK) --upgrade -c layers/core/requirements.txt --no-emit-package ziglang $(OWN) --all-extras pyproject.toml --group dev -o requirements-dev.txt
	@$(LOCK) --upgrade -c requirements-dev.txt $(OWN) --extra local pyproject.toml -o requirements-run.txt
	@$(LOCK) --upgrade -c requirements-dev.txt --group test -o requirements-test.txt
	@$(LOCK) --upgrade --no-strip-extras --group sam -o requirements-sam.txt
	@$(LOCK) --upgrade --group audit -o requirements-audit.txt
	@$(LOCK) --upgrade --group litellm -o requirements-litellm.txt
	@$(LOCK) --upgrade --group openapi -o requirements-openapi.txt
	@$(LOCK) --upgrade --group uv -o requirements-uv.txt

wheel: $(UV) ## build the wheel into .build/dist (docs/package.md)
	@$(UV) build -q --wheel --out-dir .build/dist .
	@ls .build/dist/*.whl

.PHONY: wheel

vendor: ## bundle the playground's npm packages, as local/vendor pins them, into local/playground/vendor
	@cd local/vendor && npm ci --no-audit --no-fund && npm run --silent build

prices: $(VENV)/.run ## write the list prices of models for the playground, from PyPI's genai-prices
	@rm -rf .build/prices && $(UV) pip install -q --python $(BIN)/python --target .build/prices --no-deps genai-prices
	@PYTHONPATH=.build/prices $(BIN)/python -m scripts.prices

.PHONY: vendor prices

# SAM wants a region even where none matters. MAKEFLAGS is emptied: SAM runs the layer's make, which must not see ours.
SAM_OFFLINE := MAKEFLAGS= SAM_CLI_TELEMETRY=0 AWS_DEFAULT_REGION=us-east-1 PYTHON=$(CURDIR)/$(SAM_BIN)/python UV=$(CURDIR)/$(UV) $(SAM_BIN)/sam
STAGE ?= dev

validate: .venv-sam/.installed ## lint the template
	@$(SAM_OFFLINE) validate --lint

# SAM's cache sees the sources only. Its folder is named by what else decides the build: the target, and the Python that
# compiles, which is found (or unpacked, or said to be missing) here.
SAM_BUILD = $(SAM_OFFLINE) build --cache-dir .build/cache/$(shell \
	{ cat layers/target.mk; echo $(TARGET_ARCH) $(TARGET_PYTHON); $(SAM_BIN)/python -m local.interpreters $(TARGET_PYTHON); } | cksum | cut -d ' ' -f 1)

build: .venv-sam/.installed ## build for Lambda (python3.13, arm64) into .aws-sam/build
	@$(SAM_BUILD)

build-here: TARGET_ARCH = here
build-here: .venv-sam/.installed ## build for this machine (with python3.13 if available) into .build/here
	@TARGET_ARCH=here $(SAM_BUILD) --build-dir .build/here

test-arm64: $(VENV)/.dev build ## run one conversation on the built artifact, on an emulated arm64 (3 minutes)
	@$(BIN)/python -m pytest tests/sam/arm64_turn.py

preflight: $(VENV)/.dev ## check the prerequisites of a deploy: parameters, region, credentials, secrets (STAGE=dev)
	@$(BIN)/python -m scripts.preflight $(STAGE)

# The release is new each time, so that a parameter's new value is published as well (see template.yaml).
deploy: preflight build ## deploy to AWS: STAGE=dev or STAGE=prod, with its file in parameters/
	@SAM_CLI_TELEMETRY=0 $(SAM_BIN)/sam deploy --config-env $(patsubst dev,default,$(STAGE)) \
		--parameter-overrides file://parameters/$(STAGE).yaml Release=$$(date +%s) $(SAM_ARGS)
	@STAGE=$(STAGE) $(BIN)/python -m scripts.migrate

migrate: $(VENV)/.run ## build the indexes of a deployed release, however long it takes; requests are served meanwhile: STAGE=dev
	@STAGE=$(STAGE) $(BIN)/python -m scripts.migrate

stop-all: $(VENV)/.run ## stop every function of a deployed stack at once, in an emergency: STAGE=dev
	@STAGE=$(STAGE) $(BIN)/python -m scripts.stop_all stop

start-all: $(VENV)/.run ## let the functions of a stopped stack run again: STAGE=dev
	@STAGE=$(STAGE) $(BIN)/python -m scripts.stop_all start

turns: $(VENV)/.run ## list the turns of all users that run, wait or are in line, or stop one: STAGE=dev STOP=<id>
	@STAGE=$(STAGE) STOP=$(STOP) $(BIN)/python -m scripts.turns

.PHONY: migrate stop-all start-all turns

smoke: $(VENV)/.run ## test a deployment from outside: STAGE=dev, or URL=…, or CHAT_URL=… SESSIONS_URL=…; TOKEN=… ORIGIN=…; with MODEL=… a model instead
	@STAGE=$(STAGE) $(BIN)/python -m $(if $(MODEL),scripts.smoke_model '$(MODEL)',scripts.smoke)

budget: $(VENV)/.dev ## spend a budget from 8 processes, through 60 kills, and compare the counter with the model's counts; writes docs/proofs.md (3 minutes)
	@$(BIN)/python -m tests.faults.budget_run
	@$(BIN)/python -m scripts.readme

.PHONY: budget

continue: $(VENV)/.dev ## kill 500 turns, and the processes that continue them, at random and at 13 named stages: all must finish; then a turn of 200 s in functions of 20 s; writes docs/proofs.md (8 minutes)
	@$(BIN)/python -m tests.turns.continue_run $(ARGS)
	@$(BIN)/python -m tests.faults.continue_processes
	@$(BIN)/python -m tests.faults.long_turn
	@$(BIN)/python -m scripts.readme

.PHONY: continue

races: $(VENV)/.dev ## race messages that queue, steer and interrupt against ends, stops and kills, 1,000 times, and edits, regenerations and switches, 1,000 times; writes docs/proofs.md (10 minutes)
	@$(BIN)/python -m tests.runner.races $(ARGS)
	@$(BIN)/python -m scripts.readme

model: $(VENV)/.dev ## explore every interleaving of a few processes with the real state rules, and a mutant of each rule (5 minutes)
	@$(BIN)/python -m tests.model.explorer
	@$(BIN)/python -m tests.model.mutants

forgeries: $(VENV)/.dev ## send 10,000 forged answers to waiting turns: none may run a tool or change data; writes docs/proofs.md (3 minutes)
	@PYTHONPATH=functions $(BIN)/python -m tests.security.forgeries $(ARGS)
	@$(BIN)/python -m scripts.readme

.PHONY: races model forgeries

indexes: $(VENV)/.dev ## add an index to 1,000,000 messages while cold functions are called: no request may fail (3 minutes)
	@$(BIN)/python -m pytest -s tests/functions/index_build.py

.PHONY: indexes

first-run: $(VENV)/.dev ## measure the first `make run` in a fresh clone; writes the README's sentence (2 minutes)
	@$(BIN)/python -m tests.first_run
	@$(BIN)/python -m scripts.readme

units: $(VENV)/.dev ## count the DynamoDB units of a turn of 10 seconds; writes docs/costs.md (30 seconds)
	@$(BIN)/python -m bench.writes
	@$(BIN)/python -m scripts.readme

.PHONY: first-run units

clean: ## remove build output
	@rm -rf .aws-sam .build

distclean: clean clean-local ## remove the environments as well
	@rm -rf $(VENV) .venv-audit .venv-litellm .venv-openapi .venv-sam .uv

.PHONY: help test soak check format lock validate build build-here test-arm64 preflight deploy smoke clean distclean

invoke: $(VENV)/.run ## invoke a function: FUNCTION=chat EVENT=events/chat-hello.json
	@[ -n "$(FUNCTION)" ] && [ -n "$(EVENT)" ] || { echo "Say what to invoke: make invoke FUNCTION=chat EVENT=events/chat-hello.json"; exit 2; }
	@$(BIN)/python -m local invoke $(FUNCTION) $(EVENT)

.PHONY: invoke

screenshots: $(VENV)/.dev ## retake the screenshots in docs/
	@$(BIN)/python -m pytest tests/browser/screenshots.py

animation: $(VENV)/.dev ## record docs/demo.webp: ask, kill, it goes on, approve (2 minutes)
	@rm -rf .build/pillow && $(UV) pip install -q --python $(BIN)/python --target .build/pillow pillow
	@PYTHONPATH=.build/pillow $(BIN)/python -m pytest tests/browser/animation.py

walk: $(VENV)/.dev ## count the files and functions that one POST /chat enters
	@$(BIN)/python -m scripts.walk

readme: $(VENV)/.dev ## regenerate the tables in the README and docs/
	@$(BIN)/python -m scripts.readme

.PHONY: screenshots animation walk readme

run: $(VENV)/.run ## run the whole product on this machine, with a playground in the browser: PORT=8000
	@$(BIN)/python -m local run $(ARGS)

chat: $(VENV)/.run ## chat in the terminal with the running `make run`
	@$(BIN)/python -m local chat $(ARGS)

clean-local: ## remove the data of make run
	@rm -rf .local

.PHONY: run chat clean-local

# On the Python of its peers.
bench bench-quick: export TARGET_PYTHON = $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')

bench: $(VENV)/.dev build-here ## compare the product with its peers and write bench/RESULTS.md (15 minutes)
	@$(BIN)/python -m bench

bench-quick: $(VENV)/.dev build-here ## a short benchmark that writes nothing (2 minutes)
	@$(BIN)/python -m bench --quick

.PHONY: bench bench-quick

.venv-audit/.installed: requirements-audit.txt | $(UV)
	@$(UV) venv -q --clear --python $(PYTHON) .venv-audit
	@$(UV) pip install -q --python .venv-audit/bin/python --require-hashes -r requirements-audit.txt
	@touch $@

audit: $(VENV)/.dev .venv-audit/.installed ## check the pinned dependencies: hashes, licences, known vulnerabilities; write an SBOM
	@$(BIN)/python -m scripts.audit

licences: $(VENV)/.dev ## write THIRD_PARTY.md from the packages' own metadata
	@$(BIN)/python -m scripts.licences

.PHONY: audit licences
