import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.data import orders
from paceline.data.orders import Computed, Sequential, Shuffled, Weighted, shuffled

BILLION = 10**9


@given(length=st.integers(1, 3000), seed=st.integers(0, 2**32 - 1), epoch=st.integers(0, 50))
def test_a_computed_order_shows_every_sample_once(length, seed, epoch):
    numbers = Computed(length, seed).numbers(epoch, 0, length)
    assert sorted(numbers.tolist()) == list(range(length))


@given(length=st.integers(1, 3000), bounds=st.tuples(st.integers(0, 3100), st.integers(0, 3100)))
def test_a_part_of_an_order_is_that_part_of_the_whole(length, bounds):
    start, stop = sorted(bounds)
    weights = np.arange(1.0, length + 1)
    for order in (
        Sequential(length),
        Shuffled(length, 1),
        Computed(length, 1),
        Weighted(weights, length, 1),
    ):
        whole = order.numbers(2, 0, length)
        assert order.numbers(2, start, stop).tolist() == whole[start:stop].tolist()


def test_a_computed_order_is_spread_as_chance_would_spread_it():
    """In a random permutation, all cells of position and number have about equally many entries."""
    length, cells = 1_000_003, 16
    numbers = Computed(length, seed=5).numbers(0, 0, length)
    table = np.histogram2d(np.arange(length), numbers, bins=cells)[0]
    expected = length / cells**2
    chi_squared = ((table - expected) ** 2 / expected).sum()
    assert chi_squared < 225 + 8 * np.sqrt(2 * 225)  # 15 * 15 degrees of freedom, and 8 standard deviations
    steps = np.abs(np.diff(numbers))
    assert np.mean(steps) == pytest.approx(length / 3, rel=0.01)


def test_every_epoch_and_seed_has_a_computed_order_of_its_own():
    orders_seen = {
        tuple(Computed(1000, seed).numbers(epoch, 0, 20)) for seed in range(5) for epoch in range(5)
    }
    assert len(orders_seen) == 25


def test_a_billion_samples_need_no_permutation_in_memory():
    order = shuffled(BILLION, seed=0)
    tracemalloc.start()
    numbers = order.numbers(3, 700_000_000, 700_000_256)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(set(numbers.tolist())) == 256
    assert 0 <= numbers.min() < numbers.max() < BILLION
    assert peak_bytes < 10**6


def test_a_length_that_fits_is_shuffled_as_ever(monkeypatch):
    assert isinstance(shuffled(orders.LARGE, 0), Shuffled)
    assert isinstance(shuffled(orders.LARGE + 1, 0), Computed)
    expected = np.random.default_rng([7, 2]).permutation(100)
    assert shuffled(100, 7).numbers(2, 0, 100).tolist() == expected.tolist()


def test_large_orders_are_not_kept_by_the_dozen(monkeypatch):
    monkeypatch.setattr(orders, "_KEPT_BYTES", 8 * 1000 * 3)
    order = Shuffled(1000, 0)
    for epoch in range(10):
        order.numbers(epoch, 0, 1)
    assert len(order._orders) == 3


def test_samples_are_drawn_in_proportion_to_their_weights():
    weights = np.array([0.0, 1.0, 2.0, 5.0, 0.0])
    drawn = np.bincount(Weighted(weights, 80_000, seed=1).numbers(0, 0, 80_000), minlength=5)
    # 5 standard deviations of a share of 1/2 in 80,000 draws are 707.
    assert np.abs(drawn - 10_000 * weights).max() < 710
    assert drawn[0] == drawn[4] == 0


def test_weights_draw_anew_in_every_epoch():
    order = Weighted(np.ones(50), 50, seed=0)
    assert order.numbers(0, 0, 50).tolist() != order.numbers(1, 0, 50).tolist()
    assert order.numbers(1, 0, 50).tolist() == Weighted(np.ones(50), 50, seed=0).numbers(1, 0, 50).tolist()
