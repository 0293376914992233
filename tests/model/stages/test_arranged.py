"""The memory layout of parts that cross a cut."""

import pytest
import torch
from refusals import has, refused

from paceline.context import GroupReduction
from paceline.model.stages.arranged import arrived, of_wanted, sent, spread


def test_the_parted_dimension_comes_first_and_goes_back():
    value, other = torch.randn(2, 6, 3), torch.randn(5)
    together = [GroupReduction(1, "scatter", 1, 6)]
    there = sent([other, value], together, 2)
    assert there[0] is other
    assert torch.equal(there[1], value.transpose(0, 1))
    assert there[1].is_contiguous()
    back = arrived(there, together)
    assert torch.equal(back[1], value)
    assert back[1].is_contiguous()


def test_what_is_summed_stays_as_it_is():
    value = torch.randn(2, 6, 3)
    assert sent([value], [GroupReduction(0, "sum")], 2)[0] is value


def test_a_sequence_of_another_length_is_refused_with_both():
    with refused("data", 4, bound=has(6)):
        sent([torch.randn(2, 4, 3)], [GroupReduction(0, "take", 1, 6)], 2)
    with refused("data", 4, bound=has(6)):
        sent([torch.randn(2, 2, 3)], [GroupReduction(0, "gather", 1, 6)], 2)


def test_gradients_are_those_of_wanted_values():
    together = [GroupReduction(0, "sum"), GroupReduction(2, "gather", 1, 6)]
    assert of_wanted(together, (False, True, True)) == [GroupReduction(1, "gather", 1, 6)]


@pytest.mark.parametrize(("how", "length"), [("scatter", 3), ("take", 3), ("gather", 12), ("sum", 6)])
def test_shapes_after_ranks_have_talked(how, length):
    made = spread([torch.empty(6, 2, device="meta")], [GroupReduction(0, how)], 2)
    assert made[0].shape == (length, 2)
