"""Rings of a tensor group at a cut: their bytes, and the sizes of the values afterwards."""

from __future__ import annotations

import pytest

from paceline.clusters.simulated.stage_plan import ring_of, rings_of
from paceline.context import GroupReduction


@pytest.mark.parametrize(
    ("how", "goal", "ring_bytes", "after"),
    [
        ("sum", "all-reduce", 240, 240),
        ("max", "all-reduce", 240, 240),
        ("scatter", "reduce-scatter", 240, 60),
        ("gather", "all-gather", 960, 960),
    ],
)
def test_a_ring_is_of_the_whole_value_and_leaves_the_whole_or_a_part(how, goal, ring_bytes, after):
    rings, lengths = rings_of((8, 80), [GroupReduction(1, how)], 4, samples=3)
    assert rings == [ring_of(goal, 4, ring_bytes)]
    assert lengths == [24, after]


def test_who_takes_its_part_of_what_all_have_sends_nothing():
    assert rings_of((80,), [GroupReduction(0, "take")], 4) == ([], [20])


def test_reduce_scatter_and_all_gather_have_half_the_rounds_of_an_all_reduce():
    whole, halves = (
        ring_of("all-reduce", 4, 80),
        [ring_of(g, 4, 80) for g in ("reduce-scatter", "all-gather")],
    )
    assert whole.rounds == 6
    assert [half.rounds for half in halves] == [3, 3]
    assert {half.even_bytes for half in halves} == {whole.even_bytes} == {20}


def test_values_are_made_one_of_in_turn():
    rings, lengths = rings_of((80,), [GroupReduction(0, "gather"), GroupReduction(0, "scatter")], 4)
    assert rings == [ring_of("all-gather", 4, 320), ring_of("reduce-scatter", 4, 320)]
    assert lengths == [80]
