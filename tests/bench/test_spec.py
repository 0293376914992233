import pytest

from paceline.bench.spec import Spec
from paceline.collectives import ALGORITHMS
from paceline.errors import ConfigurationError, UnknownNameError


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
    ("changes", "message"),
    [
        ({"pattern": "all-reduse"}, "did you mean 'all-reduce'"),
        ({"algorithms": ("rink",)}, "did you mean 'ring'"),
        ({"pattern": "broadcast", "algorithms": ("ring",)}, "must be one of flat, tree"),
        ({"dtype": "float8"}, "--dtype must be one of bfloat16"),
        ({"against": "nccl"}, "--against must be one of gloo"),
    ],
)
def test_an_unknown_name_is_refused_with_the_valid_ones(changes, message):
    with pytest.raises(UnknownNameError, match=message):
        spec(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"begin_bytes": 2**20, "end_bytes": 2**10}, "-b must be at most -e, which is 1024 bytes"),
        ({"begin_bytes": 0}, "-b must be at least 1 byte"),
        ({"factor": 1.0}, "-f must be above 1, but got 1.0"),
        ({"factor": float("nan")}, "-f must be above 1"),
        ({"factor": float("inf")}, "-f must be above 1"),
        ({"factor": 1.0001}, "-f must give at most 200 sizes"),
        ({"workers": 0}, "--workers must be at least 1, but got 0"),
        ({"repeat": 0}, "--repeat must be at least 1"),
        ({"simulated": True, "against": "gloo"}, "--against needs real workers"),
        ({"simulated": True, "algorithms": ("shared",)}, "must not name shared with --simulate"),
        ({"simulated": True, "algorithms": ("native",)}, "must not name native with --simulate"),
        (
            {"simulated": True, "workers": 5000, "algorithms": ("all-to-all",)},
            "at most 2,000,000 messages, but got 5000",
        ),
    ],
)
def test_a_bench_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        spec(**changes)
