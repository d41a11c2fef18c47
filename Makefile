# `make help` lists the targets. Everything lands below this folder: .tools, .venv, .venv-ddtree, .ddops.
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
	$(PY) -m pytest -q tests/unit tests/guards tests/board
	$(PY) -m pytest -q tests/contract tests/lab
	$(MAKE) ddtree
	$(PY) -m pytest -q tests/engine
	$(PY) -m pytest -q tests/systemd
	$(PY) -m pytest -q tests/slurm

.PHONY: systemd
systemd: setup ## Hosts that really boot (as root; elsewhere a skip that says why)
	$(PY) -m pytest -q tests/systemd

.PHONY: slurm
slurm: setup ## A real Slurm of two nodes (as root; elsewhere a skip that says why)
	$(PY) -m pytest -q tests/slurm

.PHONY: unit
unit: .venv/.made ## Seconds: no sshd, no engine
	$(PY) -m pytest -q tests/unit tests/guards

# torch as on a host (ddops/hostside/build_env.py): by pip, without a hash and without what a CUDA build asks for.
# Where pip offers the CUDA build, name an index with the CPU build in PIP_INDEX_URL or its wheel in PIP_FIND_LINKS.
.venv-ddtree/.made: requirements/ddtree-test.lock requirements/engine-cpu-torch.txt
	python3 -m venv --clear .venv-ddtree
	.venv-ddtree/bin/pip install -q --disable-pip-version-check --no-deps -r requirements/engine-cpu-torch.txt
	.venv-ddtree/bin/pip install -q --disable-pip-version-check --no-deps --require-hashes -r requirements/ddtree-test.lock
	@.venv-ddtree/bin/python -c 'import torch' || { echo "next: PIP_INDEX_URL with a CPU build of torch" >&2; exit 1; }
	@touch $@

.PHONY: ddtree
ddtree: .venv-ddtree/.made ## The draft tree, its kernel in Triton's interpreter: torch, no GPU
	TRITON_INTERPRET=1 .venv-ddtree/bin/python -m pytest -q tests/ddtree

.PHONY: ddtree-evidence
ddtree-evidence: ddtree .venv/.made ## What docs/explanation/ddtree-evidence.md says of a CPU
	.venv/bin/python -m pytest -s -q tests/engine/test_ddtree_inside.py tests/engine/test_ddtree_serving.py tests/engine/test_ddtree_mla.py \
		tests/engine/test_ddtree_patches.py

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
	rm -rf .venv .venv-ddtree .tools dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
