# `make demo` and `make test` set up everything they need inside .venv, from constraints.txt.
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed

.PHONY: demo test check bench docs clean

demo: $(STAMP)
	@$(VENV)/bin/python examples/demo.py

test: $(STAMP)
	@.ci/chromium
	@$(VENV)/bin/python -m pytest

check: $(STAMP)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports

docs: $(STAMP)
	@$(VENV)/bin/python docs/gallery.py

bench: $(STAMP)
	@$(VENV)/bin/python -m benchmarks

$(STAMP): constraints.txt pyproject.toml
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (once)"
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[examples,dev]'
	@touch $@

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
