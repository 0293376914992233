"""The benchmarks by name. What they measure is for a quiet machine, and not tested."""

from __future__ import annotations

import pytest

from benchmarks import __main__ as benchmarks


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["pipeline_prediction", "no-such"], "has no part no-such; it has gpipe, 1f1b, interleaved, zb-h1"),
        (["vector", "any"], "has no part any; it has none"),
    ],
)
def test_a_part_that_a_benchmark_has_not_is_refused_before_anything_runs(words, told):
    with pytest.raises(SystemExit, match=told):
        benchmarks._measure(*words)
