# make demo       environment + the whole loop against an embedded node (loopback SSH, simulated engine)
# make test       environment + all tests; installs sshd and a browser through apt-get where missing and possible
# make check      ruff, mypy --strict, import floors, installed packages fit each other
# make audit      known holes in the pinned packages; asks an advisory service, and fails where it reaches none
# make drills     the node after kills, cuts, full disks, reboots in every phase: one matrix (CELLS='edit or swap': a part)
# make mutants    named faults put into a copy of the tree, and the test that turns red for each
# make soak       twelve hours of beats, a long run, ten thousand points: memory, handles and logs stay flat
# make fuzz       every parser against 100,000 fresh inputs (FUZZ=n for another number)
# make test-torch the patch's runtime against real SGLang code, on CPU; makes an environment with torch
# make bench-ssh  round trips from connect to launch       make bench-load  the load generator against a peer
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: help env demo test check audit drills mutants soak fuzz test-torch bench-ssh bench-load clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# //p' Makefile

env: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "dynspec needs Python >= 3.11; set PYTHON=/path/to/python3.11"; exit 2; }
	@echo "installing into $(VENV): a minute or two, and silent"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/dynspec demo

WORKERS ?= $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN))))
test: $(STAMP)
	@tests/need_packages.sh
	@# Twice as many workers as processors, since many tests wait; neighbours stay in one worker and share fixtures.
	@# Commands are started hundreds of times, so the bytecode of this tree is kept even where the shell forbids it.
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n $(WORKERS) --dist worksteal --reruns 1 --rerun-show-tracebacks

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pip check

audit:
	@# An environment of its own: what audits is no part of what is audited.
	$(PYTHON) -m venv .cache/audit
	.cache/audit/bin/python -m pip install -q --disable-pip-version-check 'pip-audit>=2.9'
	.cache/audit/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off -r constraints.txt

drills: $(STAMP)
	@tests/need_packages.sh
	@# Results are kept by cell, so that a long matrix can be run in parts; all of it starts anew.
	$(if $(CELLS),,rm -f .cache/drills.json)
	$(BIN)/pytest tests/drills -m drill -q -n $(JOBS) $(if $(CELLS),-k "$(CELLS)") \
	  --matrix-results .cache/drills.json --write-matrix docs/drills.md

mutants: $(STAMP)
	$(BIN)/python -m tests.mutants

soak: $(STAMP)
	@tests/need_packages.sh
	$(BIN)/python -m tests.soak --page docs/long-runs.md

JOBS ?= 2
FUZZ ?= 100000
fuzz: $(STAMP)
	@tests/need_packages.sh
	DYNSPEC_FUZZ_INPUTS=$(FUZZ) $(BIN)/pytest tests/fuzz -q -n auto --timeout 0

test-torch: $(STAMP)
	tests/dynamic_disable/torch_env.sh

bench-ssh: $(STAMP)
	$(BIN)/python tests/bench_ssh.py

bench-load: $(STAMP)
	$(BIN)/python -m tests.bench

clean:
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
