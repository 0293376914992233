"""Shares of a gradient's time."""

import pytest

from paceline.costs.pass_shares import PassShares

SHARES = PassShares.of([1, 3, 4], forward_s=[1.0, 2.0, 1.0], backward_s=[1.0, 4.0, 1.0], gradient_s=10.0)


def test_the_passes_of_all_segments_are_compared_with_a_gradient():
    passes = (SHARES.between(0, 4, backward=backward) for backward in (False, True))
    assert sum(passes) == pytest.approx(1.0)


def test_a_segment_takes_as_long_as_its_parts():
    assert SHARES.between(0, 3, backward=False) == pytest.approx(0.3)
    assert SHARES.between(1, 4, backward=True) == pytest.approx(0.5)


def test_parts_that_were_measured_together_have_equal_shares():
    assert SHARES.between(1, 2, backward=True) == pytest.approx(0.2)
    assert SHARES.between(2, 3, backward=True) == pytest.approx(0.2)


def test_passes_take_at_least_as_long_as_a_gradient():
    disturbed = PassShares.of([1], forward_s=[1.0], backward_s=[1.0], gradient_s=3.0)
    assert (disturbed.forward, disturbed.backward) == ((0.5,), (0.5,))
