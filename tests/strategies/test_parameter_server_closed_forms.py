"""The seconds of an update and the staleness of a gradient are those of theory.

Dutta, Joshi, Ghosh, Dube, Nagpurkar: Slow and Stale Gradients Can Win the Race, arXiv 1803.01113.
"""

import math

import numpy as np
import pytest
from strategies.server_cases import EXPONENTIAL, PARETO, SHIFTED, mean_of, spec_of, timed

import paceline as pl
from paceline.testing.order_statistics import expected_order_statistic, mean_staleness, seconds_per_update

STANDARD_ERROR = 0.0065
"""Standard error of the mean seconds of a run: a third of the tolerance."""

CONFIGURATIONS = [
    ("sync", EXPONENTIAL, 4, None),
    ("sync", EXPONENTIAL, 8, None),
    ("sync", EXPONENTIAL, 16, None),
    ("sync", SHIFTED, 8, None),
    ("sync", PARETO, 8, None),
    ("k-sync", EXPONENTIAL, 4, 2),
    ("k-sync", EXPONENTIAL, 8, 6),
    ("k-sync", EXPONENTIAL, 16, 8),
    ("k-sync", SHIFTED, 8, 3),
    ("k-sync", PARETO, 8, 7),
    ("k-sync", PARETO, 4, 1),
    ("k-batch-sync", EXPONENTIAL, 4, 7),
    ("k-batch-sync", EXPONENTIAL, 8, 6),
    ("k-batch-sync", EXPONENTIAL, 16, 16),
    ("k-batch-sync", PARETO, 8, 1),
    ("async", EXPONENTIAL, 4, None),
    ("async", EXPONENTIAL, 8, None),
    ("async", EXPONENTIAL, 16, None),
    ("async", SHIFTED, 8, None),
    ("async", PARETO, 16, None),
    ("k-async", EXPONENTIAL, 4, 3),
    ("k-async", EXPONENTIAL, 8, 4),
    ("k-async", EXPONENTIAL, 16, 4),
    ("k-async", SHIFTED, 8, 1),
    ("k-async", SHIFTED, 8, 8),
    ("k-batch-async", EXPONENTIAL, 4, 7),
    ("k-batch-async", EXPONENTIAL, 16, 4),
    ("k-batch-async", SHIFTED, 8, 3),
    ("k-batch-async", PARETO, 8, 5),
]


def name(value):
    return type(value).__name__.lower() if isinstance(value, pl.times.Times) else str(value)


def in_one_process(configuration):
    """One process of pytest does all tests of a configuration, and so simulates it once.

    Exponential times vary most, and so take the most updates: of them `make test` has only what is below.
    """
    words = "-".join(map(name, configuration))
    slow = [pytest.mark.slow] if EXPONENTIAL in configuration else []
    return pytest.param(*configuration, id=words, marks=[pytest.mark.xdist_group(words), *slow])


CASES = [in_one_process(configuration) for configuration in CONFIGURATIONS]
SYNCHRONOUS = [case for case in CASES if case.values[0] in ("sync", "k-sync", "k-batch-sync")]


def simulate(variant, times, workers, k):
    """As many updates as it takes for the standard error."""
    samples = times.sample(np.random.default_rng(0), 10_000 * workers).reshape(-1, workers)
    if "batch" in variant or (k or variant) in (1, "async"):
        # The workers' renewals, one after the other.
        variance = samples.var() / samples.mean() ** 2 / (k or 1)
    else:
        slowest = np.sort(samples, axis=1)[:, (k or workers) - 1]
        variance = slowest.var() / slowest.mean() ** 2
    return timed(spec_of(variant, k), workers, times, steps=math.ceil(variance / STANDARD_ERROR**2))


@pytest.mark.parametrize(("variant", "times", "workers", "k"), CASES)
def test_the_mean_seconds_of_an_update_are_those_of_theory(variant, times, workers, k):
    expected = seconds_per_update(variant, times, workers, k)
    assert simulate(variant, times, workers, k).step_seconds == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(("variant", "times", "workers", "k"), CASES)
def test_the_mean_staleness_is_that_of_theory_whatever_the_distribution(variant, times, workers, k):
    staleness = mean_of(simulate(variant, times, workers, k).staleness)
    assert staleness == pytest.approx(mean_staleness(variant, workers, k), rel=0.02)


@pytest.mark.parametrize(("variant", "times", "workers", "k"), CASES)
def test_every_update_is_by_k_gradients(variant, times, workers, k):
    run = simulate(variant, times, workers, k)
    assert sum(run.staleness.values()) == run.steps * (k or (workers if variant == "sync" else 1))


def test_sync_over_async_for_exponential_times_is_p_times_the_harmonic_number():
    sync, asynchronous = (simulate(variant, EXPONENTIAL, 8, None) for variant in ("sync", "async"))
    assert sync.step_seconds / asynchronous.step_seconds == pytest.approx(21.742857, rel=0.02)


@pytest.mark.parametrize("k", [2, 5, 7])
def test_k_async_lies_between_its_bounds_where_new_lasts_longer_than_used(k):
    seconds = timed(f"k-async:k={k}", 8, SHIFTED, steps=8000 // k).step_seconds
    assert k * SHIFTED.mean_s / 8 < seconds < expected_order_statistic(SHIFTED, k, 8)


@pytest.mark.parametrize(("variant", "times", "workers", "k"), SYNCHRONOUS)
def test_gradients_of_the_synchronous_variants_are_never_stale(variant, times, workers, k):
    assert set(simulate(variant, times, workers, k).staleness) == {0}


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [
        ("sync", 1.0),
        ("k-sync:k=3", 1.0),
        ("k-async:k=4", 1.0),
        ("ssp:staleness=0", 1 / 4),
        ("k-batch-sync:k=1", 1.0),
        ("k-batch-sync:k=4", 1.0),
        ("k-batch-sync:k=5", 2.0),
        ("k-batch-sync:k=9", 3.0),
        ("async", 1 / 4),
        ("k-batch-async:k=2", 2 / 4),
    ],
)
def test_constant_times_give_the_seconds_exactly(spec, seconds):
    run = timed(spec, 4, pl.times.Constant(1.0), steps=400)
    assert run.seconds == pytest.approx(400 * seconds, rel=1e-12)
