# dualpath: `make` lists what there is.
.DEFAULT_GOAL := help
.PHONY: help setup test test-all lint quickstart prepare-data torture

VENV := .venv
BIN := $(VENV)/bin
# The first Python on the PATH that the package supports.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& echo $$p && break; done)
WORKERS ?= 2
OUT ?= data/nemotron-cc
SOURCE ?= nemotron-cc
TOKENIZER ?= $(if $(CONFIG)$(filter sample,$(SOURCE)),,gpt2)

help: ## Lists the targets.
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/installed ## Creates .venv and installs the package with its tools (uv if there, else pip).

$(VENV)/installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python 3.11, 3.12 or 3.13 on the PATH; name one with PYTHON=..."; exit 2; }
	@if command -v uv >/dev/null; then \
		uv venv --allow-existing --quiet --python $(PYTHON) $(VENV) && \
		uv pip install --python $(BIN)/python --editable '.[dev,tensorboard]'; \
	else \
		$(PYTHON) -m venv $(VENV) && \
		$(BIN)/python -m pip install --disable-pip-version-check --editable '.[dev,tensorboard]'; \
	fi
	@touch $@

test: setup ## Runs the everyday tests, WORKERS=2 at a time; none needs a GPU or the network.
	$(BIN)/pytest --numprocesses $(WORKERS) --dist loadgroup -m "not slow"

test-all: setup ## Runs all tests, also those that are rare and long, as CI does.
	$(BIN)/pytest --numprocesses $(WORKERS) --dist loadgroup

lint: setup ## Checks style, formatting and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

quickstart: setup ## Trains a small model on a generated corpus, ablates it, writes a page of its routing.
	$(BIN)/python -m data_prep --source sample --out data/sample
	$(BIN)/dualpath fit --config quickstart
	$(BIN)/dualpath ablate --ckpt_path runs/quickstart/default --max_tokens 3000
	$(BIN)/dualpath routing --ckpt_path runs/quickstart/default --max_tokens 3000 --tagger none
	@echo "try:  $(BIN)/dualpath fit --config quickstart --run.name wide --model.block wide --model.d_ffn_wide 2688"
	@echo "      $(BIN)/dualpath flops --budget 80M --alpha 50 --k 4"

prepare-data: setup ## Makes a data folder, by default of a file of Nemotron-CC: see README, Data.
	$(BIN)/python -m data_prep $(if $(CONFIG),--config $(CONFIG),--source $(SOURCE)) \
		$(if $(TOKENIZER),--tokenizer $(TOKENIZER)) $(if $(NUM_FILES),--num-files $(NUM_FILES)) \
		$(if $(TOKENS),--tokens $(TOKENS)) $(if $(YES),--yes) --out "$(OUT)"

torture: setup ## Kills a preparation 200 times and before every change of the disk.
	$(BIN)/pytest tests/data_prep/test_kills.py --kills 200
