# make demo   environment + the whole loop against an embedded node (loopback SSH, simulated engine)
# make test   environment + all tests; installs openssh-server through apt-get where missing and possible
# make check  ruff, mypy --strict, import floors
# make bench-ssh / bench-load   benchmarks, never part of the tests
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test check env bench-ssh clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# //p' Makefile

env: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "dynspec needs Python >= 3.11; set PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/dynspec demo

test: $(STAMP)
	@tests/need_sshd.sh
	$(BIN)/pytest -n 2

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench-ssh: $(STAMP)
	$(BIN)/python tests/bench_ssh.py

clean:
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
