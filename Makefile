# Everything sets itself up in .venv; `make demo` and `make test` are all a newcomer needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PROTO := joulemap/monitor/monitor.proto
GENERATED := $(PROTO:%.proto=src/%_pb2.py)
# A test that failed gets one second run, and is named at the end with what was wrong; ten tests at most.
AGAIN := --reruns 1 --max-suite-reruns 10 --rerun-show-tracebacks

.DEFAULT_GOAL := help
.PHONY: help install demo test lint format bench docs clean

help:  ## Show these targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

install: $(READY) $(GENERATED)  ## Install joulemap for development in .venv

$(READY): pyproject.toml constraints.txt
	@echo "Installing joulemap with TensorFlow, PyTorch, JAX and its tools into $(VENV): a few minutes, once."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

$(GENERATED): src/$(PROTO) $(READY)
	cd src && ../$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --grpc_python_out=. $(PROTO)

demo: $(READY) $(GENERATED)  ## Train a small BERT for about a minute and show where its joules went
	$(BIN)/joulemap demo

test: $(READY) $(GENERATED)  ## Run the tests, with coverage
	@sh scripts/chromium.sh
	$(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term $(AGAIN)

lint: $(READY) $(GENERATED)  ## Check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)  ## Bring the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) $(GENERATED)  ## Measure speed and memory; the table goes to benchmarks/results
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/blocks.py --framework torch
	$(BIN)/python benchmarks/blocks.py --framework jax
	$(BIN)/python benchmarks/hooks.py
	$(BIN)/python benchmarks/closing.py
	$(BIN)/python benchmarks/calls.py

docs: $(READY)  ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:  ## Remove everything that was built
	rm -rf $(VENV) $(GENERATED) $(GENERATED:.py=_grpc.py) site .coverage .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
