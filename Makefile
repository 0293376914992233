# `make demo` and `make test` install everything they need into .venv, from constraints.txt.
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
RAY := $(VENV)/.ray-installed
MODELS := $(VENV)/.models-installed
SPARK := $(VENV)/.spark-installed
SITE := $(VENV)/.site-installed
# One more than the number of cores: many tests wait for a deadline, or for processes to start.
PROCESSES = $(shell echo $$(($$(nproc) + 1)))
PIP = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-all test-every test-long check bench soak docs site model-table clean

demo: $(STAMP)
	@$(VENV)/bin/python examples/demo.py

# Tests start hundreds of Python processes. Write compiled modules, even if the environment disables this.
PYTEST = PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -m pytest --numprocesses $(PROCESSES) --dist loadgroup

test: $(STAMP) $(RAY)
	@.ci/debian
	@$(PYTEST) -m "not slow"

# Tests that `make test` leaves out: slow tests, and tests that repeat faster ones in more cases.
test-all: $(STAMP) $(RAY) $(MODELS) $(SITE) $(SPARK)
	@.ci/debian
	@$(PYTEST) -m "slow and not exhaustive"

# Before a release: the cases that both leave out, every strategy in every combination of task, workers and world.
test-every: $(STAMP) $(RAY) $(MODELS)
	@.ci/debian
	@$(PYTEST) -m exhaustive

# Run the shutdown tests of networks and processes TIMES times each, with all cores busy. Slow: begin with TIMES=2.
TIMES ?= 50
test-long: $(STAMP) $(RAY)
	@$(VENV)/bin/python tests/harness/under_load.py env $(PYTEST) -m "shutdown and not slow" --times $(TIMES)
	@PACELINE_KILL_SEEDS=100 $(PYTEST) -m slow tests/clusters/local/test_members.py

check: $(STAMP)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports

docs: $(STAMP)
	@$(VENV)/bin/python docs/gallery.py
	@$(VENV)/bin/python docs/other_systems.py

# Static pages from docs/ and from the code: build/site/html/index.html.
site: $(STAMP) $(SITE)
	@$(VENV)/bin/python docs/site/build_site.py

# Train every model of tests/zoo by many strategies, and write docs/model_table.md.
model-table: $(STAMP) $(MODELS)
	@OMP_NUM_THREADS=1 $(VENV)/bin/python docs/model_table.py

bench: $(STAMP) $(RAY)
	@$(VENV)/bin/python -m benchmarks

# MINUTES of random runs, or only the case SEED.
MINUTES ?= 10
soak: $(STAMP) $(RAY)
	@$(VENV)/bin/python -m soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED) --runs 1)

$(STAMP): constraints.txt pyproject.toml
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (once)"
	@$(PIP) -e '.[examples,dev]'
	@touch $@

# Only the tests and benchmarks of Ray need Ray.
$(RAY): $(STAMP)
	@$(PIP) -e '.[ray]'
	@touch $@

# Only the slow tests of Spark need Spark, and Java.
$(SPARK): $(STAMP)
	@$(PIP) -e '.[spark]'
	@touch $@

# Only the table of models needs Hugging Face's transformers.
$(MODELS): $(STAMP)
	@$(PIP) -e '.[models]'
	@touch $@

# Only the site needs Sphinx.
$(SITE): $(STAMP)
	@$(PIP) -e '.[site]'
	@touch $@

clean:
	rm -rf $(VENV) build/site runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
