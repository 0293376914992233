import pytest
from refusals import has, refused, unknown

from paceline.bench.spec import Spec
from paceline.collectives import ALGORITHMS


def spec(pattern="all-reduce", **changes):
    return Spec(pattern=pattern, **changes)


def test_sizes_grow_by_the_factor_up_to_the_end():
    assert spec(begin_bytes=4096, end_bytes=300_000, factor=4).lengths == (1024, 4096, 16384, 65536)


def test_a_factor_need_not_be_whole():
    assert spec(begin_bytes=400, end_bytes=1000, factor=1.5).lengths == (100, 150, 225)


def test_a_size_is_whole_elements_and_no_size_comes_twice():
    assert spec(begin_bytes=1, end_bytes=16, factor=2, dtype="float64").lengths == (1, 2)


@pytest.mark.parametrize("pattern", ["all-gather", "reduce-scatter", "all-to-all"])
def test_a_pattern_of_chunks_has_equal_chunks(pattern):
    lengths = spec(pattern, workers=3, begin_bytes=4, end_bytes=4096, factor=4).lengths
    assert lengths[0] == 3
    assert all(length % 3 == 0 for length in lengths)


def test_a_barrier_has_one_size_which_is_none():
    assert spec("barrier").lengths == (0,)


def test_small_sizes_are_repeated_more_often():
    usual = spec()
    counts = [usual.repeats(length) for length in usual.lengths]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] >= 20
    assert counts[-1] >= 5
    assert {spec(repeat=3).repeats(length) for length in usual.lengths} == {3}


def test_all_algorithms_are_compared_by_default_but_auto_which_is_one_of_them():
    assert set(spec().algorithms) == set(ALGORITHMS) - {"auto"}
    assert spec(algorithms=("auto", "ring", "auto")).algorithms == ("auto", "ring")


def test_a_simulation_leaves_out_what_has_no_messages_and_says_so():
    simulated = spec(simulated=True)
    assert {"shared", "native"}.isdisjoint(simulated.algorithms)
    assert set(simulated.left_out) == {"shared", "native"}


def test_a_wide_simulation_leaves_out_all_to_all_unless_it_is_named():
    assert "all-to-all" in spec(simulated=True, workers=1000).left_out
    named = spec(simulated=True, workers=1000, algorithms=("all-to-all",))
    assert "all-to-all" not in named.left_out


def test_the_baseline_is_timed_once_whether_it_is_named_or_not():
    assert spec(algorithms=("ring",), against="gloo").cases == ("ring", "gloo")
    both = spec(algorithms=("ring", "native"), against="gloo")
    assert both.cases == ("ring", "native")
    assert both.baseline == "native"


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"pattern": "all-reduse"}, unknown("pattern", "all-reduse", nearest="all-reduce")),
        ({"algorithms": ("rink",)}, unknown("--algorithms of all-reduce", "rink", nearest="ring")),
        ({"pattern": "broadcast", "algorithms": ("ring",)}, unknown("--algorithms of broadcast", "ring")),
        ({"dtype": "float8"}, unknown("--dtype", "float8", bound=has("bfloat16"))),
        ({"against": "nccl"}, unknown("--against", "nccl")),
    ],
)
def test_an_unknown_name_is_refused_with_the_valid_ones(changes, refusal):
    with refusal:
        spec(**changes)


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"begin_bytes": 2**20, "end_bytes": 2**10}, refused("-b", 1048576, bound=has(1024))),
        ({"begin_bytes": 0}, refused("-b", 0, bound=has(1))),
        ({"factor": 1.0}, refused("-f", 1.0)),
        ({"factor": float("nan")}, refused("-f", bound=has(1))),
        ({"factor": float("inf")}, refused("-f", bound=has(1))),
        ({"factor": 1.0001}, refused("-f", 1.0001, bound=has(200))),
        ({"workers": 0}, refused("--workers", 0, bound=has(1))),
        ({"repeat": 0}, refused("--repeat", 0, bound=has(1))),
        ({"simulated": True, "against": "gloo"}, refused("--against", "gloo")),
        (
            {"simulated": True, "algorithms": ("shared",)},
            refused("--algorithms", "shared", bound=has("--simulate")),
        ),
        (
            {"simulated": True, "algorithms": ("native",)},
            refused("--algorithms", "native", bound=has("--simulate")),
        ),
        (
            {"simulated": True, "workers": 5000, "algorithms": ("all-to-all",)},
            refused("--workers", 5000, bound=has("2,000,000")),
        ),
    ],
)
def test_a_bench_that_cannot_be_is_refused(changes, refusal):
    with refusal:
        spec(**changes)
