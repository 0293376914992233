import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import has, refused, unknown

from paceline.costs import times
from paceline.costs.times import Constant, Exponential, Pareto, Phases, ShiftedExponential, Times, Trace
from paceline.errors import ConfigurationError

unhurried = settings(deadline=None, max_examples=60)  # other work may hold the machine up

ALL: list[Times] = [
    Constant("50ms"),
    Phases("20ms", "20ms", "10ms"),
    Exponential(0.05),
    ShiftedExponential("10ms", "5ms"),
    Pareto("10ms", 3),
    Trace([0.1, "200ms", 0.4]),
]


def seeded() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize("distribution", ALL, ids=repr)
def test_a_sample_is_what_as_many_draws_give(distribution: Times) -> None:
    rng = seeded()
    draws = [distribution.draw(rng) for _ in range(100)]
    assert all(type(draw) is float for draw in draws)
    np.testing.assert_array_equal(distribution.sample(seeded(), 100), draws)


@pytest.mark.parametrize("distribution", ALL, ids=repr)
def test_samples_have_the_mean_that_is_promised(distribution: Times) -> None:
    sample = distribution.sample(seeded(), 200_000)
    assert sample.mean() == pytest.approx(distribution.mean_s, rel=0.01)
    assert (sample >= 0).all()


@pytest.mark.parametrize("distribution", ALL, ids=repr)
def test_a_distribution_is_one_by_protocol_and_travels(distribution: Times) -> None:
    assert isinstance(distribution, Times)
    assert pickle.loads(pickle.dumps(distribution)) == distribution
    assert hash(distribution) == hash(pickle.loads(pickle.dumps(distribution)))


def test_means_are_the_textbook_ones() -> None:
    assert Constant("50ms").mean_s == 0.05
    assert Exponential("50ms").mean_s == 0.05
    assert ShiftedExponential("10ms", "5ms").mean_s == pytest.approx(0.015)
    assert Pareto(0.01, 2).mean_s == pytest.approx(0.02)
    assert Pareto(0.01, 1).mean_s == math.inf
    assert Trace([1, 2, 6]).mean_s == 3


def test_times_written_in_two_ways_are_equal() -> None:
    assert Exponential("50ms") == Exponential(0.05) == Exponential(mean=0.05)
    assert Trace(iter(["100ms", 0.2])) == Trace(np.array([0.1, 0.2]))
    assert Exponential(0.05) != Constant(0.05)


def test_a_trace_draws_only_what_was_measured_and_all_of_it() -> None:
    assert set(Trace([0.1, 0.2, 0.3]).sample(seeded(), 1000)) == {0.1, 0.2, 0.3}


def test_a_long_trace_is_told_shortly() -> None:
    assert repr(Trace([0.1, 0.2])) == "Trace((0.1, 0.2))"
    assert repr(Trace(np.ones(10_000))) == "Trace(<10000 times, mean 1 s>)"


@pytest.mark.parametrize("bad", [-1, "-1ms", math.nan, math.inf, "soon", None, True])
def test_the_class_and_field_that_are_wrong_are_named(bad: object) -> None:
    cases = {
        "Constant.seconds": lambda: Constant(bad),  # type: ignore[arg-type]
        "Exponential.mean": lambda: Exponential(mean=bad),  # type: ignore[arg-type]
        "ShiftedExponential.shift": lambda: ShiftedExponential(bad, 1),  # type: ignore[arg-type]
        "ShiftedExponential.mean": lambda: ShiftedExponential(1, bad),  # type: ignore[arg-type]
        "Pareto.minimum": lambda: Pareto(bad, 2),  # type: ignore[arg-type]
        "Pareto.shape": lambda: Pareto(1, bad),  # type: ignore[arg-type]
        "Trace.values[1]": lambda: Trace([1, bad]),  # type: ignore[list-item]
    }
    for argument, make in cases.items():
        with pytest.raises(ConfigurationError) as caught:
            make()
        assert caught.value.argument == argument


def test_a_pareto_needs_a_minimum_and_a_shape_above_zero() -> None:
    with refused("Pareto.minimum", 0):
        Pareto(0, 2)
    with refused("Pareto.shape", 0):
        Pareto(1, 0)


@pytest.mark.parametrize("values", [[], "0.1", 5])
def test_a_trace_needs_a_list_of_times(values: object) -> None:
    with refused("Trace.values", values):
        Trace(values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("exp:mean=50ms", Exponential(0.05)),
        ("exponential:mean=50ms", Exponential(0.05)),
        ("exp:50ms", Exponential(0.05)),
        ("Exponential: mean = 50ms", Exponential(0.05)),
        ("const:50ms", Constant(0.05)),
        ("phases:forward=2ms,backward=3ms,weights=1ms", Phases(0.002, 0.003, 0.001)),
        ("constant:seconds=50ms", Constant(0.05)),
        ("shifted-exp:shift=10ms,mean=5ms", ShiftedExponential(0.01, 0.005)),
        ("shifted-exponential:mean=5ms,shift=10ms", ShiftedExponential(0.01, 0.005)),
        ("pareto:min=10ms,shape=2", Pareto(0.01, 2)),
        ("pareto:minimum=10ms,shape=2.5", Pareto(0.01, 2.5)),
        ("trace:0.1,0.2,0.3", Trace([0.1, 0.2, 0.3])),
        ("trace:100ms", Trace([0.1])),
    ],
)
def test_a_spec_names_a_distribution(spec: str, expected: Times) -> None:
    assert times.parse(spec) == expected


def test_an_unknown_distribution_is_refused_with_the_names_and_the_nearest() -> None:
    with unknown("delay", "paretto", nearest="pareto"):
        times.parse("paretto:min=1,shape=2", "delay")


def test_an_unknown_key_is_refused_with_the_keys_and_the_nearest() -> None:
    with unknown("a key of Pareto", "shap", nearest="shape"):
        times.parse("pareto:min=1,shap=2")


@pytest.mark.parametrize(
    ("spec", "refusal"),
    [
        ("exp", refused("times Exponential")),
        ("exp:", refused("times Exponential")),
        ("pareto:min=1", refused("times Pareto", "pareto:min=1")),
        ("pareto:min=1,shape=wide", refused("Pareto.shape")),
        ("pareto:min=1,shape=nan", refused("Pareto.shape")),
        ("exp:1,2", refused("times Exponential", "exp:1,2")),
        ("shifted-exp:mean=1,mean=2", refused("times ShiftedExponential.mean", "shifted-exp:mean=1,mean=2")),
        ("exp:mean=-1", refused("Exponential.mean", "-1", bound=has(0))),
        ("exp:mean=", refused("Exponential.mean", "")),
        ("trace:", refused("Trace.values", [])),
    ],
)
def test_a_spec_that_lacks_or_repeats_something_is_refused(spec: str, refusal) -> None:
    with refusal:
        times.parse(spec)


@unhurried
@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_any_times_survive_a_spec(shift: float, mean: float) -> None:
    assert times.parse(f"shifted-exp:shift={shift!r},mean={mean!r}s") == ShiftedExponential(shift, mean)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("const:50ms", "50 ms"),
        ("exp:mean=50ms", "exponential with mean 50 ms"),
        ("shifted-exp:shift=10ms,mean=5ms", "10 ms plus exponential with mean 5 ms"),
        ("pareto:min=10ms,shape=2", "Pareto of shape 2 from 10 ms"),
        ("trace:0.1,0.3", "a trace of 2 times with mean 200 ms"),
        ("phases:forward=1ms,backward=2ms,weights=3ms", "forward 1 ms + backward 2 ms + weights 3 ms"),
    ],
)
def test_the_text_of_a_distribution_is_words(spec, words):
    assert str(times.parse(spec)) == words
