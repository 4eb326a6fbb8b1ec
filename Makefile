# make demo: real text from a paged KV pool.   make test: the whole suite.   make help: the rest.
PYTHON ?= python3.12
BIN := .venv/bin
# The CPU is what everybody has; GPU=1 leaves the choice to JAX (install an extra first: pip install -e '.[cuda12]').
ifndef GPU
export JAX_PLATFORMS ?= cpu
endif

.PHONY: help demo readme test test-fast gpu-proof gpu-check paper bench-peers lint format check-imports types

help:
	@echo "make demo        generate for three prompts with the default model (fetches it once)"
	@echo "make test        the whole test suite"
	@echo "make test-fast   the suite without the slow tests"
	@echo "make gpu-proof   compile every kernel and two whole decode steps for A100, H100 and H200; needs no GPU"
	@echo "make gpu-check   on a machine with a GPU: check and measure the kernels and the engine, under eight minutes"
	@echo "make paper       every figure of the paper out of the simulator, into runs/paper (FULL=1: at the paper's lengths)"
	@echo "make bench-peers measure jpaged beside other engines on this machine (installs them, some GB)"
	@echo "make readme      run every command and snippet of the README"
	@echo "make lint        format, lint, import contracts, types"
	@echo "make format      mend what ruff can mend"

.venv: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch .venv

demo: .venv
	$(BIN)/jpaged generate --chat --temperature 0 --max-tokens 48 --max-model-len 1024 --stats \
	  "What is the capital of France?" \
	  "Give me three tips for a good night's sleep." \
	  "Explain in two sentences why the sky is blue."

test: .venv
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not gpu_proof'

test-fast: .venv
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not slow and not gpu_proof'

# The plugin is no part of `dev`: it is large, and JAX complains about missing CUDA libraries where JAX_PLATFORMS is unset.
gpu-proof: .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[gpu-proof]'
	JPAGED_GPU_PROOF=1 JAX_PLATFORMS=cpu $(BIN)/python -m pytest -n 2 tests/gpu_proof

# With the Python that has JAX for the GPU: the virtual environment if there is one, else PYTHON. ARGS adds flags.
gpu-check:
	env -u JAX_PLATFORMS $(or $(wildcard $(BIN)/python),$(PYTHON)) -m jpaged.gpu_check $(ARGS)

# The real scheduler under a virtual clock; needs no model and no GPU. Points that are there already are not run again.
paper: .venv
	$(BIN)/python -m experiments.paper $(if $(FULL),--full) $(ARGS)

# In turn, in one run, on an idle machine. ARGS="--peers openvino --rounds 1" and the like are passed on.
bench-peers: .venv
	$(BIN)/python -m experiments.peers --write-docs $(ARGS)

# Every command and every snippet of the README, as they stand there.
readme: .venv
	$(BIN)/python tests/readme_commands.py

lint: .venv check-imports types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

check-imports: .venv
	$(BIN)/lint-imports

types: .venv
	$(BIN)/pyright

format: .venv
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
