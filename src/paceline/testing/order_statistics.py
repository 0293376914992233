"""The theory of stragglers: the expected k-th smallest of p times, and the resulting speed of each variant.

Dutta, Joshi, Ghosh, Dube, Nagpurkar: Slow and Stale Gradients Can Win the Race, arXiv 1803.01113. Compute times are
independent and identically distributed; communication is free. Used to verify the simulator.
"""

from __future__ import annotations

import math
from functools import singledispatch

import numpy as np

from paceline.costs.times import Constant, Exponential, Pareto, ShiftedExponential, Times, Trace
from paceline.errors import ConfigurationError, UnknownNameError

VARIANTS = ("sync", "k-sync", "k-batch-sync", "k-async", "k-batch-async", "async")


def expected_order_statistic(times: Times, k: int, p: int) -> float:
    """Return the expected k-th smallest of `p` independent times. Infinite if the tail is too heavy."""
    if not 1 <= k <= p:
        raise ConfigurationError("k", f"must be from 1 to p = {p}", k, "it counts from the fastest")
    return _expected(times, k, p)


@singledispatch
def _expected(times: Times, k: int, p: int) -> float:
    remedy = "use Constant, Exponential, ShiftedExponential, Pareto or Trace, or simulate"
    raise ConfigurationError("times", "must be a distribution with known order statistics", times, remedy)


@_expected.register
def _(times: Constant, k: int, p: int) -> float:
    return times.mean_s


@_expected.register
def _(times: Exponential, k: int, p: int) -> float:
    return times.mean_s * _harmonic_difference(k, p)


@_expected.register
def _(times: ShiftedExponential, k: int, p: int) -> float:
    return times.shift_s + times.excess_s * _harmonic_difference(k, p)


@_expected.register
def _(times: Pareto, k: int, p: int) -> float:
    last = p - k + 1
    inverse = 1 / times.shape
    if last <= inverse:
        return math.inf
    logarithm = math.lgamma(p + 1) - math.lgamma(last) + math.lgamma(last - inverse)
    return times.minimum_s * math.exp(logarithm - math.lgamma(p + 1 - inverse))


@_expected.register
def _(times: Trace, k: int, p: int) -> float:
    # E[X] is the integral of P(X > x). The k-th smallest exceeds x if fewer than k draws are at most x.
    values = np.sort(np.array(times.values_s))
    at_most = np.arange(1, len(values)) / len(values)
    return float(values[0] + np.diff(values) @ _binomial_below(k, p, at_most))


def _harmonic_difference(k: int, p: int) -> float:
    """Return H_p - H_{p-k}."""
    return math.fsum(1 / n for n in range(p - k + 1, p + 1))


def _binomial_below(k: int, p: int, chance: np.ndarray) -> np.ndarray:
    """Return P(fewer than k successes in p trials). Uses logarithms, because p choose i soon overflows a float."""
    success, failure = np.log(chance), np.log1p(-chance)
    total = np.zeros_like(chance)
    for i in range(k):
        ways = math.lgamma(p + 1) - math.lgamma(i + 1) - math.lgamma(p - i + 1)
        total += np.exp(ways + i * success + (p - i) * failure)
    return total


def seconds_per_update(variant: str, times: Times, workers: int, k: int | None = None) -> float | None:
    """Return the expected seconds of one update in the long run; None if no closed form is known.

    `sync` and `async` need no `k`.
    """
    k = _checked_k(variant, workers, k)
    if variant in ("sync", "k-sync"):
        return expected_order_statistic(times, k, workers)
    if variant in ("async", "k-batch-async"):
        return k * times.mean_s / workers
    if variant == "k-async":
        return _k_async_seconds(times, workers, k)
    return _k_batch_sync_seconds(times, workers, k)


def _k_async_seconds(times: Times, workers: int, k: int) -> float | None:
    if k == 1:
        return times.mean_s / workers
    # Workers that are still computing restart in distribution: there are none, or the times are memoryless.
    if k == workers or isinstance(times, Exponential):
        return expected_order_statistic(times, k, workers)
    return None


def _k_batch_sync_seconds(times: Times, workers: int, k: int) -> float | None:
    if k == 1:
        return expected_order_statistic(times, 1, workers)
    if isinstance(times, Exponential):
        return k * times.mean_s / workers
    if isinstance(times, Constant):
        return math.ceil(k / workers) * times.mean_s
    return None


def mean_staleness(variant: str, workers: int, k: int | None = None) -> float:
    """Return the expected number of updates between a gradient's pull and its use. Valid for any distribution."""
    k = _checked_k(variant, workers, k)
    if variant in ("async", "k-batch-async"):
        return (workers - 1) / k
    if variant == "k-async":
        return (workers - k) / k
    return 0.0


def _checked_k(variant: str, workers: int, k: int | None) -> int:
    if variant not in VARIANTS:
        raise UnknownNameError("variant", variant, VARIANTS)
    if workers < 1:
        raise ConfigurationError("workers", "must be at least 1", workers, "give the number of workers")
    if variant in ("sync", "async"):
        return workers if variant == "sync" else 1
    # There may be more mini-batches than workers, because a worker may contribute several.
    most = math.inf if "batch" in variant else workers
    if k is None or not 1 <= k <= most:
        bound = "at least 1" if "batch" in variant else f"from 1 to {workers}, the number of workers,"
        raise ConfigurationError("k", f"must be {bound} for {variant}", k, "give k")
    return k
