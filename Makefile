# Every target works as the first command on a machine with Python 3.11 or newer and a C++ compiler:
# the environment is made on demand, and again when what it was made from has changed.

PYTHON ?= python3
THROUGHPUT ?= 500000

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
PEERS := benchmarks/.peers
PIP := $(BIN)/python -m pip install -q -c constraints.txt

# Threads of the numeric libraries sleep while they wait, so that parallel tests do not steal each other's cores.
export OMP_WAIT_POLICY := passive
export GOMP_SPINCOUNT := 0

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint docs bench peers soak clean

help: ## this list
	@grep -E '^[a-z]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z]+):.*## (.*)/  make \1 \t\2/' | expand -t 16
	@echo "Variables: PYTHON=$(PYTHON), THROUGHPUT=$(THROUGHPUT) (samples a second that demo asks for)"

setup: $(STAMP) ## environment in .venv, native core built
	@echo "ready: $(BIN)/heterps"

demo: $(STAMP) ## profile a click model, plan it over the catalog, train it here, report
	@$(BIN)/heterps run examples/demo.yaml --here --compare --no-resume --set goal.min_throughput=$(THROUGHPUT)

# Three at a time, on two cores: tests of clusters often wait. A file stays in one process, as its fixtures do; the
# longest files start first (tests/conftest.py). Processes share what they compile.
test: $(STAMP) ## unit tests, three files at a time
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

lint: $(STAMP) ## ruff (lint and format) and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(STAMP) ## the documentation as pages in site/
	@$(BIN)/mkdocs build --strict --quiet
	@echo "built: site/index.html"

bench: $(STAMP) ## benchmarks of the planner, the store, training and clusters (beside their peers, if made)
	$(BIN)/python benchmarks/plan.py
	$(BIN)/python benchmarks/store.py
	$(BIN)/python benchmarks/train.py
	$(BIN)/python benchmarks/cluster.py

peers: ## environments of the peers that the benchmarks measure beside heterps
	$(PYTHON) -m venv $(PEERS)/fbgemm
	$(PEERS)/fbgemm/bin/python -m pip install -q -c constraints.txt torch numpy
	$(PEERS)/fbgemm/bin/python -m pip install -q --no-deps fbgemm-gpu-cpu==1.8.0 torchrec==1.8.0 tensordict \
		torchmetrics==1.0.3 pyre-extensions
	$(PEERS)/fbgemm/bin/python -m pip install -q redis hiredis
	$(PYTHON) -m venv $(PEERS)/paddle
	$(PEERS)/paddle/bin/python -m pip install -q paddlepaddle==2.6.2 "numpy<2" "protobuf<5" setuptools

soak: $(STAMP) ## long tests
	$(BIN)/pytest -m soak

clean: ## removes the environment, build outputs and caches
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find heterps tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

# The native core is compiled by the install, so its sources are among the prerequisites.
$(STAMP): pyproject.toml constraints.txt CMakeLists.txt $(wildcard csrc/* csrc/*/* csrc/*/*/*)
	@$(PYTHON) -c 'import sys; sys.exit("heterps needs Python 3.11 or newer; try make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	@echo "setting up $(VENV): the first time takes some minutes"
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@$(PIP) scikit-build-core nanobind cmake ninja
	@$(PIP) --no-build-isolation -e '.[dev]'
	@touch $@
