import math

import pytest

from paceline.costs.intervals import best_interval_s, daly_s, simulated_goodput, young_s


def expected_s(interval_s, checkpoint_s, failures_every_s):
    """Return the seconds for a second of work, including checkpoints and repeated work: Daly's equation 20."""
    between = math.expm1((interval_s + checkpoint_s) / failures_every_s)
    return failures_every_s * between / interval_s


def best_by_trial_s(checkpoint_s, failures_every_s):
    """Minimize by golden section. The expected time has one minimum."""
    low, high, golden = 1e-6, 20 * failures_every_s, (math.sqrt(5) - 1) / 2
    for _ in range(200):
        left, right = high - golden * (high - low), low + golden * (high - low)
        if expected_s(left, checkpoint_s, failures_every_s) < expected_s(
            right, checkpoint_s, failures_every_s
        ):
            high = right
        else:
            low = left
    return (low + high) / 2


def test_a_checkpoint_of_a_minute_and_a_failure_a_day_give_youngs_own_answer():
    assert young_s(60, 86_400) == pytest.approx(math.sqrt(2 * 60 * 86_400))
    assert round(young_s(60, 86_400) / 60) == 54


@pytest.mark.parametrize("checkpoint_s", [0.01, 1, 60, 600])
@pytest.mark.parametrize("failures_every_s", [3600, 86_400])
def test_no_interval_is_better_than_dalys(checkpoint_s, failures_every_s):
    given = expected_s(daly_s(checkpoint_s, failures_every_s), checkpoint_s, failures_every_s)
    best_s = best_by_trial_s(checkpoint_s, failures_every_s)
    assert given <= 1.0001 * expected_s(best_s, checkpoint_s, failures_every_s)


def test_where_checkpoints_take_longer_than_there_is_time_the_interval_is_that_between_failures():
    assert daly_s(100, 50) == daly_s(1000, 50) == 50


def test_where_checkpoints_cost_nothing_both_say_the_same():
    assert daly_s(1e-9, 3600) == pytest.approx(young_s(1e-9, 3600), rel=1e-5)


@pytest.mark.parametrize("interval_s", [20, 300, 3000])
def test_the_simulated_goodput_is_that_of_dalys_equation(interval_s):
    found = simulated_goodput(interval_s, 10, 3600, failures=200_000)
    assert found == pytest.approx(1 / expected_s(interval_s, 10, 3600), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("formula", [young_s, daly_s])
@pytest.mark.parametrize(
    ("checkpoint_s", "failures_every_s"), [(0.02, 600), (5, 600), (30, 3600), (60, 86_400)]
)
def test_the_goodput_at_the_interval_of_young_and_daly_is_within_two_percent_of_the_best(
    formula, checkpoint_s, failures_every_s
):
    best_s = best_interval_s(checkpoint_s, failures_every_s)
    best = simulated_goodput(best_s, checkpoint_s, failures_every_s)
    given_s = formula(checkpoint_s, failures_every_s)
    assert 0.98 * best <= simulated_goodput(given_s, checkpoint_s, failures_every_s) <= best
    assert simulated_goodput(5 * best_s, checkpoint_s, failures_every_s) < best
