"""Costs of computations, derived from measured times."""

import pytest

from paceline.planner.calibrating.compute import costs_of


def result(times, samples=(), update_bytes=1000):
    return {"times": times, "samples": list(samples), "update_bytes": update_bytes}


def rounds(*seconds):
    return list(seconds)


def test_gradients_are_a_line_over_their_samples():
    times = {"1 at once": rounds(0.3), "gradient/10": rounds(0.2), "gradient/30": rounds(0.4)}
    times |= {"update": rounds(0.05), "copy": rounds(0.001)}
    costs, copied = costs_of(1, [1], [result(times, (10, 30))], cores=2)
    assert (costs.fixed_s, costs.per_sample_s) == pytest.approx((0.1, 0.01))
    assert (costs.update_s, costs.update_bytes, copied) == (0.05, 1000, 1e6)
    assert costs.residual == pytest.approx(0.0, abs=1e-9)


def test_the_slowdown_is_the_median_ratio_within_rounds():
    """In the second round the whole machine was slow, so both times count against each other."""
    first = {"1 at once": rounds(1.0, 3.0, 1.0), "2 at once": rounds(1.2, 3.6, 1.2), "copy": rounds(1, 1, 1)}
    second = {"2 at once": rounds(1.2, 3.6, 9.0)}
    costs, _ = costs_of(1, [1, 2], [result(first), result(second)], cores=2)
    assert costs.slowdown == pytest.approx({1: 1.0, 2: 1.2})


def test_ranks_beyond_the_cores_share_them():
    """The times are without those in which a rank had no core."""
    times = {f"{count} at once": rounds(1.0) for count in (1, 4)} | {"copy": rounds(1.0)}
    costs, _ = costs_of(1, [1, 4], [result(times)] * 4, cores=2)
    assert costs.slowdown == {1: 1.0, 4: 2.0}
    assert costs.samples == ()
