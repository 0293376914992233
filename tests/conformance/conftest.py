"""`make test` tests one variant of each strategy with models in segments, and `make test-all` the others."""

import pytest
from conformance.cases import IN_PIECES, VARIANTS

LATER = {spec for name in IN_PIECES for spec in VARIANTS.get(name, [])[1:]} | {"tensor"}
"""Tracing a model takes a second on every rank of `tensor`; tests/strategies/test_tensor.py tries it in any case."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        given = getattr(item, "callspec", None)
        if given is not None and "conformance" in item.nodeid and given.params.get("spec") in LATER:
            item.add_marker(pytest.mark.slow)
