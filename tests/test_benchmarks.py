"""The benchmarks by name. Their measurements need a quiet machine and are not tested."""

from __future__ import annotations

import pytest
from refusals import raised

from benchmarks import __main__ as benchmarks


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["pipeline_prediction", "no-such"], ["no-such", "gpipe", "1f1b", "interleaved", "zb-h1"]),
        (["vector", "any"], ["vector", "any"]),
    ],
)
def test_a_part_that_a_benchmark_has_not_is_refused_before_anything_runs(words, facts):
    with raised(SystemExit, *facts):
        benchmarks._measure(*words)
