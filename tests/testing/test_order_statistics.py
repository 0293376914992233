"""Closed forms against known values, against each other, and against simulations that know no formula."""

import heapq
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import has, refused, unknown

from paceline.costs.times import Constant, Exponential, Pareto, ShiftedExponential, Times, Trace
from paceline.testing.order_statistics import (
    VARIANTS,
    expected_order_statistic,
    mean_staleness,
    seconds_per_update,
)

unhurried = settings(deadline=None, max_examples=60)  # other work may hold the machine up

KNOWN: list[Times] = [
    Constant(2),
    Exponential(0.5),
    ShiftedExponential(1, 0.5),
    Pareto(1, 3.5),
    Trace([0.1, 0.2, 0.2, 0.7, 3]),
]


def test_sync_over_async_for_exponential_times_is_p_times_the_harmonic_number() -> None:
    sync = seconds_per_update("sync", Exponential(1), 8)
    asynchronous = seconds_per_update("async", Exponential(1), 8)
    assert sync is not None
    assert asynchronous is not None
    assert sync / asynchronous == pytest.approx(21.742857, abs=1e-6)


@pytest.mark.parametrize("times", KNOWN, ids=repr)
@pytest.mark.parametrize(("k", "p"), [(1, 1), (1, 5), (3, 5), (5, 5)])
def test_the_kth_smallest_of_p_samples_has_the_expected_mean(times: Times, k: int, p: int) -> None:
    samples = times.sample(np.random.default_rng(3), 200_000 * p).reshape(-1, p)
    mean = np.sort(samples, axis=1)[:, k - 1].mean()
    assert mean == pytest.approx(expected_order_statistic(times, k, p), rel=0.01)


@pytest.mark.parametrize("times", KNOWN, ids=repr)
@pytest.mark.parametrize("p", [1, 2, 7, 300])
def test_the_order_statistics_average_to_the_mean(times: Times, p: int) -> None:
    mean = math.fsum(expected_order_statistic(times, k, p) for k in range(1, p + 1)) / p
    assert mean == pytest.approx(times.mean_s, rel=1e-9)


@unhurried
@given(st.lists(st.floats(0, 100), min_size=1, max_size=6), st.integers(1, 6))
def test_a_trace_has_the_order_statistics_of_all_its_equally_likely_draws(
    values: list[float], p: int
) -> None:
    if len(values) ** p > 5000:
        p = 3
    grid = np.meshgrid(*[values] * p)
    every = np.sort(np.stack([axis.ravel() for axis in grid], axis=1), axis=1).mean(axis=0)
    for k in range(1, p + 1):
        assert expected_order_statistic(Trace(values), k, p) == pytest.approx(
            every[k - 1], rel=1e-9, abs=1e-12
        )


def test_ten_thousand_workers_are_no_problem() -> None:
    assert expected_order_statistic(Exponential(1), 10_000, 10_000) == pytest.approx(9.787606, abs=1e-6)
    assert expected_order_statistic(Pareto(1, 2), 10_000, 10_000) == pytest.approx(
        math.sqrt(math.pi * 10_000), rel=1e-4
    )
    assert expected_order_statistic(Trace([1, 2]), 5000, 10_000) == pytest.approx(1.496, abs=1e-3)


def test_a_tail_that_is_too_heavy_has_no_finite_mean_at_the_slow_end_only() -> None:
    heavy = Pareto(1, 0.6)
    assert expected_order_statistic(heavy, 4, 4) == math.inf
    assert expected_order_statistic(heavy, 3, 4) < math.inf


def test_k_counts_from_the_fastest_to_p() -> None:
    for k in (0, 6):
        with refused("k", k, bound=has(1, 5)):
            expected_order_statistic(Constant(1), k, 5)


def test_a_distribution_of_somebody_else_has_no_closed_form() -> None:
    class Strange:
        mean_s = 1.0

        def draw(self, rng: np.random.Generator) -> float:
            return 1.0

        def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
            return np.ones(n)

    with refused("times"):
        expected_order_statistic(Strange(), 1, 2)
    assert seconds_per_update("async", Strange(), 4) == 0.25


def simulate(variant: str, times: Times, workers: int, k: int, updates: int) -> tuple[float, float]:
    """Mean seconds between updates and mean staleness, by playing the variant out."""
    rng = np.random.default_rng(11)
    heap = [
        (times.draw(rng), rank, 0) for rank in range(workers)
    ]  # when it ends, whose it is, version it pulled
    heapq.heapify(heap)
    now, version, arrived, waiting = 0.0, 0, 0, list[int]()
    staleness = 0
    while version < updates:
        now, rank, pulled = heapq.heappop(heap)
        arrived += 1
        staleness += version - pulled
        waiting.append(rank)
        if "batch" in variant and arrived < k:  # it goes on at once
            heapq.heappush(heap, (now + times.draw(rng), waiting.pop(), version))
        if arrived == k:
            version, arrived = version + 1, 0
            if variant in ("k-sync", "k-batch-sync"):  # the rest is cancelled
                waiting, heap = list(range(workers)), []
            for free in waiting:
                heapq.heappush(heap, (now + times.draw(rng), free, version))
            waiting = []
    return now / updates, staleness / (updates * k)


@pytest.mark.parametrize(
    "times", [Exponential(1), ShiftedExponential(1, 0.5), Pareto(1, 3), Constant(1)], ids=repr
)
@pytest.mark.parametrize(
    ("variant", "k"),
    [
        ("k-sync", 3),
        ("k-sync", 6),
        ("k-batch-sync", 1),
        ("k-batch-sync", 4),
        ("k-batch-sync", 9),
        ("k-async", 1),
        ("k-async", 4),
        ("k-async", 6),
        ("k-batch-async", 1),
        ("k-batch-async", 4),
        ("k-batch-async", 9),
    ],
)
def test_each_variant_played_out_takes_the_seconds_that_theory_says(
    variant: str, k: int, times: Times
) -> None:
    seconds, staleness = simulate(variant, times, workers=6, k=k, updates=4000)
    expected = seconds_per_update(variant, times, 6, k)
    if expected is not None:
        assert seconds == pytest.approx(expected, rel=0.03)
    assert staleness == pytest.approx(mean_staleness(variant, 6, k), rel=0.03, abs=0.01)


def test_the_extremes_of_every_variant_are_sync_and_async() -> None:
    for times in KNOWN:
        sync, asynchronous = (seconds_per_update(name, times, 6) for name in ("sync", "async"))
        assert seconds_per_update("k-sync", times, 6, 6) == seconds_per_update("k-async", times, 6, 6) == sync
        assert seconds_per_update("k-async", times, 6, 1) == asynchronous
        assert seconds_per_update("k-batch-async", times, 6, 1) == asynchronous
    assert mean_staleness("async", 6) == 5
    assert mean_staleness("sync", 6) == 0


def test_where_no_closed_form_exists_none_is_given() -> None:
    for times in (ShiftedExponential(1, 1), Pareto(1, 3), Trace([1, 2])):
        assert seconds_per_update("k-async", times, 6, 3) is None
        assert seconds_per_update("k-batch-sync", times, 6, 3) is None
    assert seconds_per_update("k-async", Constant(1), 6, 3) is None


@pytest.mark.parametrize("ask", [lambda v, p, k: seconds_per_update(v, Constant(1), p, k), mean_staleness])
def test_what_no_variant_can_mean_is_refused(ask: object) -> None:
    assert callable(ask)
    with unknown("variant", "ksync", nearest="k-sync"):
        ask("ksync", 4, 2)
    for variant in set(VARIANTS) - {"sync", "async"}:
        for k in (None, 0):
            with refused("k", k, bound=has(variant)):
                ask(variant, 4, k)
    for variant in ("k-sync", "k-async"):
        with refused("k", 5, bound=has(1, 4)):
            ask(variant, 4, 5)
    with refused("workers", 0, bound=has(1)):
        ask("sync", 0, None)
