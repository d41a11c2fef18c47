# `make help` lists the targets. Everything lands below this folder: .tools, .venv, .ddops.
.DEFAULT_GOAL := help
SHELL := /bin/sh
UV := $(shell command -v uv 2>/dev/null || echo .tools/bin/uv)
PY := .venv/bin/python
export UV_PYTHON_DOWNLOADS := never

.PHONY: help
help: ## This list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

.tools/bin/uv:
	@python3 -m venv .tools || { echo "next: sudo apt-get install python3-venv" >&2; exit 1; }
	.tools/bin/pip install -q --disable-pip-version-check uv

.PHONY: system
system: ## System packages the lab needs (installs only as root)
	@tools/system-packages

.venv/.made: requirements/dev.lock pyproject.toml | $(UV)
	$(UV) venv -q --allow-existing --python "$$(command -v python3)" .venv
	$(UV) pip sync -q --python $(PY) --require-hashes requirements/dev.lock
	$(UV) pip install -q --python $(PY) --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: setup
setup: system .venv/.made ## System packages and the project's own environment

.PHONY: demo
demo: setup ## The README's first page, for real: lab, check, provision, deploy, ask, status
	@PATH="$(CURDIR)/.venv/bin:$$PATH" tools/demo

.PHONY: test
test: setup lint ## Everything CI runs
	$(PY) -m pytest -q tests/unit tests/guards
	$(PY) -m pytest -q tests/contract tests/lab
	$(PY) -m pytest -q tests/engine
	$(PY) -m pytest -q tests/systemd

.PHONY: systemd
systemd: setup ## Hosts that really boot (as root; elsewhere a skip that says why)
	$(PY) -m pytest -q tests/systemd

.PHONY: unit
unit: .venv/.made ## Seconds: no sshd, no engine
	$(PY) -m pytest -q tests/unit tests/guards

.PHONY: lint
lint: .venv/.made ## ruff, mypy strict, import contracts
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

.PHONY: lock
lock: | $(UV) ## Renew requirements/dev.lock
	$(UV) pip compile -q --upgrade --generate-hashes --no-emit-index-url --python-version 3.11 \
	  pyproject.toml --group dev -o requirements/dev.lock

.PHONY: wheel
wheel: .venv/.made ## The wheel, in dist/
	$(PY) -m hatchling build -t wheel

.PHONY: clean
clean: ## Remove what was built here (not .ddops: a ledger may be in it)
	rm -rf .venv .tools dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
