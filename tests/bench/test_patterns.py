import pytest

from paceline.bench.patterns import PATTERNS
from paceline.collectives import ALGORITHMS
from paceline.schedules.collectives import COLLECTIVES


@pytest.mark.parametrize(
    ("pattern", "factor"),
    [
        ("all-reduce", 2 * 3 / 4),
        ("reduce-scatter", 3 / 4),
        ("all-gather", 3 / 4),
        ("all-to-all", 3 / 4),
        ("broadcast", 1),
        ("reduce", 1),
    ],
)
def test_bus_bandwidth_of_four_ranks_is_that_of_nccl_tests(pattern, factor):
    assert PATTERNS[pattern].bus_factor(4) == factor


def test_one_rank_has_no_bus():
    assert PATTERNS["all-reduce"].bus_factor(1) == 0


def test_all_reduce_has_every_algorithm_and_the_others_have_their_schedules():
    assert PATTERNS["all-reduce"].algorithms == ALGORITHMS
    assert all(
        pattern.algorithms == tuple(COLLECTIVES[name])
        for name, pattern in PATTERNS.items()
        if name != "all-reduce"
    )
