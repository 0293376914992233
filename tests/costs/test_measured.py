import numpy as np
import pytest

from paceline.costs.measured import Measured, fit
from paceline.costs.prices import Pass, Work
from paceline.costs.stragglers import Stragglers

EVEN = Stragglers(slow={}, delay=None)


def price(pricing, stragglers=EVEN):
    return pricing.of_rank(0, stragglers, np.random.default_rng(3))


def test_what_is_measured_grows_with_the_samples():
    measured = price(Measured(0.25, 0.5, update_s=0.125))
    assert [measured.seconds(Work.GRADIENT, 0, samples) for samples in (0, 1, 4)] == [0.25, 0.75, 2.25]
    assert measured.seconds(Work.UPDATE, 0, 0) == 0.125


def test_an_update_of_a_part_takes_a_part_of_the_time():
    measured = price(Measured(0.25, 0.5, update_s=0.125, update_bytes=400))
    assert measured.seconds(Work.UPDATE, 0, 100) == 0.125 / 4


def test_a_pass_that_was_measured_takes_what_it_took():
    slow = price(Measured(3.0, 1.5), stragglers=Stragglers(slow={0: 2.0}, delay=None))
    one = Pass(Work.BACKWARD, 0.5, samples=2, slice_samples=8.0, measured_s=0.75)
    assert slow.pass_seconds(one) == 1.5


@pytest.mark.parametrize(
    ("samples", "seconds", "expected"),
    [
        ((2, 10), (1.0, 3.0), (0.5, 0.25)),
        ((10, 2), (3.0, 1.0), (0.5, 0.25)),
        ((4, 8), (1.0, 0.5), (1.0, 0.0)),  # more samples in less time, by chance
        ((4, 8), (1.0, 9.0), (0.0, 0.25)),  # nothing fixed is left
        ((0, 4), (0.5, 2.5), (0.5, 0.5)),
        ((3, 3), (1.0, 1.0), (1.0, 0.0)),
    ],
)
def test_the_first_measurement_is_met_and_nothing_is_below_zero(samples, seconds, expected):
    fixed_s, per_sample_s = fit(samples, seconds)
    assert (fixed_s, per_sample_s) == pytest.approx(expected)
    assert fixed_s + per_sample_s * samples[0] == pytest.approx(seconds[0])
