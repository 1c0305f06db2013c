# Every target makes the environment it needs. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SAM_BIN := .venv-sam/bin
LOCK := uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(VENV)/.installed: requirements-dev.txt
	@echo "Setting up $(VENV) (first run only, a minute or two) ..."
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": set PYTHON=...") if sys.version_info < (3, 11) else 0'
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes --no-deps -r requirements-dev.txt
	@echo "$(CURDIR)/layers/core" > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/omniagent.pth"
	@touch $@

.venv-sam/.installed: requirements-sam.txt
	@echo "Setting up .venv-sam (first run only, a minute or two) ..."
	@$(PYTHON) -m venv --clear .venv-sam
	@$(SAM_BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements-sam.txt
	@touch $@

test: $(VENV)/.installed ## run every test
	@$(BIN)/python -m pytest -n 2 $(ARGS)

check: $(VENV)/.installed ## lint, format and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(VENV)/.installed ## format and fix what ruff can fix
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lock: $(VENV)/.installed ## pin the dependencies of pyproject.toml again, with hashes
	@$(BIN)/python -m pip install -q uv
	@$(BIN)/$(LOCK) --upgrade pyproject.toml -o layers/core/requirements.txt
	@# cargo-lambda asks for a compiler of 400 MB that only `cargo lambda build` uses: left out, hence --no-deps above.
	@$(BIN)/$(LOCK) --upgrade -c layers/core/requirements.txt --no-emit-package ziglang pyproject.toml --group dev -o requirements-dev.txt
	@$(BIN)/$(LOCK) --upgrade --no-strip-extras --group sam -o requirements-sam.txt

# SAM wants a region even where none matters. MAKEFLAGS is emptied: SAM runs the layer's make, which must not see ours.
SAM_OFFLINE := MAKEFLAGS= SAM_CLI_TELEMETRY=0 AWS_DEFAULT_REGION=us-east-1 PYTHON=$(CURDIR)/$(SAM_BIN)/python $(SAM_BIN)/sam
STAGE ?= dev

validate: .venv-sam/.installed ## lint the template
	@$(SAM_OFFLINE) validate --lint

build: .venv-sam/.installed ## build for Lambda (python3.13, arm64) into .aws-sam/build
	@$(SAM_OFFLINE) build

build-here: .venv-sam/.installed ## build for this machine into .build/here
	@TARGET_ARCH=here $(SAM_OFFLINE) build --build-dir .build/here --cache-dir .build/cache

# The release is new each time, so that a parameter's new value is published as well (see template.yaml).
deploy: build ## deploy to AWS: STAGE=dev or STAGE=prod, its parameters in parameters/
	@SAM_CLI_TELEMETRY=0 $(SAM_BIN)/sam deploy --config-env $(STAGE:dev=default) \
		--parameter-overrides file://parameters/$(STAGE).yaml Release=$$(date +%s)

clean: ## remove what was built
	@rm -rf .aws-sam .build

.PHONY: help test check format lock validate build build-here deploy clean

invoke: $(VENV)/.installed ## invoke a function: FUNCTION=chat EVENT=events/chat-hello.json
	@$(BIN)/python -m local invoke $(FUNCTION) $(EVENT)

.PHONY: invoke

readme: $(VENV)/.installed ## write the README's tables from the code
	@$(BIN)/python -m scripts.readme

.PHONY: readme

run: $(VENV)/.installed ## run the whole product on this machine, with a page to chat on: PORT=8000
	@$(BIN)/python -m local run $(ARGS)

chat: $(VENV)/.installed ## chat in the terminal with what `make run` started
	@$(BIN)/python -m local chat $(ARGS)

clean-local: ## remove the data of make run
	@rm -rf .local

.PHONY: run chat clean-local

bench: $(VENV)/.installed build-here ## measure the product beside its peers and write bench/RESULTS.md (15 minutes)
	@$(BIN)/python -m bench

bench-quick: $(VENV)/.installed build-here ## the same in small, nothing written (2 minutes)
	@$(BIN)/python -m bench --quick

.PHONY: bench bench-quick

audit: $(VENV)/.installed ## check the pinned dependencies: hashes, licences, and known vulnerabilities where pip-audit is
	@$(BIN)/python -m scripts.audit

licences: $(VENV)/.installed ## write THIRD_PARTY.md from the packages' own metadata
	@$(BIN)/python -m scripts.licences

.PHONY: audit licences
