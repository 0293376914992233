# `make demo` and `make test` set up everything they need inside .venv, from constraints.txt.
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
RAY := $(VENV)/.ray-installed
# One more than there are cores: many tests wait, for a deadline or for processes to start.
PROCESSES = $(shell echo $$(($$(nproc) + 1)))
PIP = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-all check bench soak docs clean

demo: $(STAMP)
	@$(VENV)/bin/python examples/demo.py

# Tests start hundreds of Python processes: compiled modules are kept, even where the environment says otherwise.
PYTEST = PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -m pytest --numprocesses $(PROCESSES) --dist loadgroup

test: $(STAMP) $(RAY)
	@.ci/debian
	@$(PYTEST) -m "not slow"

# What `make test` leaves out: tests that take long, or say once more what quicker ones say.
test-all: $(STAMP) $(RAY)
	@.ci/debian
	@$(PYTEST) -m slow

check: $(STAMP)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports

docs: $(STAMP)
	@$(VENV)/bin/python docs/gallery.py
	@$(VENV)/bin/python docs/words.py

bench: $(STAMP) $(RAY)
	@$(VENV)/bin/python -m benchmarks

# MINUTES of random runs, or the case SEED alone.
MINUTES ?= 10
soak: $(STAMP) $(RAY)
	@$(VENV)/bin/python -m soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED) --runs 1)

$(STAMP): constraints.txt pyproject.toml
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (once)"
	@$(PIP) -e '.[examples,dev]'
	@touch $@

# Ray is needed by its tests and benchmarks alone.
$(RAY): $(STAMP)
	@$(PIP) -e '.[ray]'
	@touch $@

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
