# dualpath: `make` lists what there is.
.DEFAULT_GOAL := help
.PHONY: help setup dev test test-all test-lowest lint constraints quickstart prepare-data torture

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# The first Python on the PATH that the package supports.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null \
	&& echo $$p && break; done)
# Versions that are known to work, unless UV_RESOLUTION asks for others: the newest by `highest`.
CONSTRAINTS := $(if $(UV_RESOLUTION),,constraints.txt)
TORCH ?= torch==2.14.1 torchvision==0.29.1
WORKERS ?= 2
# Else each process of the tests would compile all that it imports: half of its time to collect them.
unexport PYTHONDONTWRITEBYTECODE
# A file stays on one worker; the lightest files are the last; a worker that dies is an error at once.
PYTEST := $(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0
OUT ?= data/nemotron-cc
SOURCE ?= nemotron-cc
TOKENIZER ?= $(if $(CONFIG)$(filter sample primitives,$(SOURCE)),,gpt2)

help: ## Lists the targets.
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/installed ## Creates .venv with what running needs, in half a minute.

# uv installs in half a minute what takes pip four. Where it is not on the PATH, pip puts it into
# .venv; where pip cannot, pip installs the rest as well, but not where UV_RESOLUTION or
# UV_TORCH_BACKEND is set, which only uv obeys. What was cut off is begun anew.
UV_INSTALL := pip install --python $(BIN)/python \
	$(foreach file,$(CONSTRAINTS),--constraint $(file) --build-constraint $(file))
define install
@test -n "$(PYTHON)" || { echo "no Python 3.11 to 3.14 on the PATH; name one with PYTHON=..."; exit 2; }
@test ! -e $(VENV)/unfinished || rm -rf $(VENV)
@mkdir -p $(VENV) && touch $(VENV)/unfinished
@if command -v uv >/dev/null; then \
	uv venv --allow-existing --quiet --python $(PYTHON) $(VENV) && \
	uv $(UV_INSTALL) --editable '$(1)'; \
else \
	{ $(PIP) --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV); } && \
	{ { $(PIP) install --quiet --retries 1 --timeout 10 uv && \
		$(BIN)/uv $(UV_INSTALL) --editable '$(1)'; } || \
	{ test -z "$$UV_RESOLUTION$$UV_TORCH_BACKEND" && \
		$(PIP) install --constraint constraints.txt --editable '$(1)'; }; }; \
fi
@rm $(VENV)/unfinished && touch $(VENV)/installed $@
endef

$(VENV)/installed: pyproject.toml constraints.txt
	$(call install,.[tensorboard])

dev: $(VENV)/dev ## Adds what testing needs; `test` and `lint` do so by themselves.

$(VENV)/dev: pyproject.toml constraints.txt
	$(call install,.[dev])

test: $(VENV)/dev ## Runs the everyday tests, or TESTS, WORKERS=2 at a time; none needs a GPU or the network.
	$(PYTEST) -m "not slow" $(TESTS)

test-all: $(VENV)/dev ## Runs all tests, also those that are rare and long, as the nightly CI does.
	$(PYTEST) --kills 3 --hypothesis-profile nightly

test-lowest: ## Runs tests of numbers with the lowest versions that pyproject.toml allows.
	UV_RESOLUTION=lowest-direct $(MAKE) test VENV=.venv-lowest TESTS="tests/kernels tests/model \
		tests/training/test_golden.py tests/training/test_step.py \
		tests/training/test_activation_checkpointing.py"

lint: $(VENV)/dev ## Checks style, formatting and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# For each Python and system that is supported. PyTorch names the packages of CUDA and Triton itself,
# and its builds differ in them. uv would write an index's address, and other builds of PyTorch.
constraints: ## Makes constraints.txt anew: the newest versions beside TORCH.
	@mkdir -p build
	printf '%s\n' $(TORCH) | env -u UV_RESOLUTION -u UV_TORCH_BACKEND \
		$(shell command -v uv || echo $(BIN)/uv) pip compile --quiet --universal --upgrade \
		--python-version 3.11 --all-extras --no-header --no-annotate --no-emit-index-url \
		--no-emit-find-links --constraint - --output-file build/constraints.txt pyproject.toml
	{ echo '# Known-good versions; `make constraints` makes this file anew (docs/testing.md).'; \
		grep -vE '^(cuda-|nvidia-|triton=)' build/constraints.txt; } > constraints.txt

quickstart: setup ## Trains a small model on a generated corpus, ablates it, writes a page of its routing.
	@$(BIN)/dualpath quickstart

prepare-data: setup ## Makes a data folder, by default of a file of Nemotron-CC: see docs/data.md.
	$(BIN)/dualpath prepare $(if $(CONFIG),--config $(CONFIG),--source $(SOURCE)) \
		$(if $(TOKENIZER),--tokenizer $(TOKENIZER)) $(if $(NUM_FILES),--num-files $(NUM_FILES)) \
		$(if $(TOKENS),--tokens $(TOKENS)) $(if $(YES),--yes) --out "$(OUT)"

torture: $(VENV)/dev ## Kills preparations and runs a thousand times, and fuzzes; hours, resumable.
	$(BIN)/pytest tests/data_prep/test_kills.py --kills 200 --timeout 0
	$(BIN)/pytest tests/cli/test_fuzz.py --hypothesis-profile torture --timeout 0
	$(BIN)/python -m tests.training.torture --kills 1000 --signals 300 --done build/torture.json
