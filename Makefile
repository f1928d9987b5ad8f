# From a fresh clone to results with one command. Needs python3 (>= 3.10), a C++20 compiler and make.
# pip's own settings (PIP_INDEX_URL and so on) decide where packages come from.
PYTHON ?= python3
VENV ?= .venv
ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --constraint constraints.txt
CXX_FILES = $(shell find csrc tests benchmarks examples -name '*.[ch]pp' -o -name '*.cu' -o -name '*.cuh' 2> /dev/null)
SETUP := $(VENV)/.installed
MPI := $(VENV)/.mpi-tried

.DEFAULT_GOAL := help
.PHONY: help bench gpu-check test build lint format clean
.DELETE_ON_ERROR:

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo 'ARGS="..." goes to the benchmark or to pytest; PYTHON, VENV and CXX choose the tools.'

bench: build $(MPI)  ## Set up, build and run the benchmark; writes bench.json and bench.png, bench_paths.*
	$(BIN)/python benchmarks/bench_low_latency.py --json bench.json --plot bench.png $(ARGS)
	$(BIN)/python benchmarks/bench_low_latency.py --paths both --ranks-per-node 8 --peers none \
		--json bench_paths.json --plot bench_paths.png $(ARGS)

gpu-check: build  ## Set up, build and check one GPU in ten minutes; writes gpu_check.json
	$(BIN)/python benchmarks/gpu_check.py --json gpu_check.json $(ARGS)

# All at once by three workers: tests/conftest.py says which does what.
test: build  ## Set up, build and run all tests
	$(BIN)/python -m pytest $(or $(strip $(ARGS)),--numprocesses 3)

build: $(SETUP)  ## Set up and build in place; kernels for GPUs too where there is an nvcc
	@$(BIN)/python setup.py --quiet build_ext --inplace

lint: $(SETUP)  ## Check format, style, types and spelling
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(if $(CXX_FILES),$(BIN)/clang-format --dry-run -Werror $(CXX_FILES))
	$(BIN)/codespell

format: $(SETUP)  ## Format all code and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(if $(CXX_FILES),$(BIN)/clang-format -i $(CXX_FILES))

clean:  ## Remove what was built; the environment stays
	rm -rf build dist *.egg-info deep_ll/*.so deep_ll/_kernels bench.json bench.png bench_paths.json bench_paths.png gpu_check.json
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# NOTE [check first]: what is missing is named before anything is downloaded.
define check_tools
@command -v $(firstword $(PYTHON)) > /dev/null \
	|| { echo '$(PYTHON) is missing; install it with: apt-get install python3 python3-venv python3-dev' >&2; exit 1; }
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	|| { echo '$(PYTHON) is older than 3.10; name a newer one: make PYTHON=python3.12 ...' >&2; exit 1; }
@$(PYTHON) -c 'import venv, ensurepip' 2> /dev/null \
	|| { echo 'the venv module is missing; install it with: apt-get install python3-venv' >&2; exit 1; }
@$(PYTHON) -c 'import os, sysconfig; open(os.path.join(sysconfig.get_path("include"), "Python.h"))' 2> /dev/null \
	|| { echo 'Python.h is missing; install it with: apt-get install python3-dev' >&2; exit 1; }
@command -v $(firstword $(CXX)) > /dev/null \
	|| { echo 'no C++ compiler: $(CXX) is missing; install it with: apt-get install g++' >&2; exit 1; }
@echo '#include <concepts>' | $(CXX) -std=c++20 -x c++ -fsyntax-only - 2> /dev/null \
	|| { echo '$(CXX) lacks C++20; install a newer one: apt-get install g++-12, then make CXX=g++-12 ...' >&2; exit 1; }
endef

export CXX

$(SETUP): pyproject.toml constraints.txt
	$(check_tools)
	@echo 'setting up $(VENV); the first time takes some minutes'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) setuptools wheel pybind11
	$(INSTALL) --no-build-isolation --editable '.[test,lint,bench,cuda13]'
	@touch $@

# MPI is only something to compare with: without it the benchmark leaves that column out.
$(MPI): $(SETUP)
	@$(INSTALL) --no-build-isolation --editable '.[mpi]' \
		|| echo 'note: MPI could not be installed; the benchmark runs without it' >&2
	@touch $@
