"""How a tensor is split among ranks."""

import pytest
import torch

from paceline.model.tensor_parallel.spec import Shares, Split, narrowed, widened

FUSED = Split(0, 4, blocks=3, unit=2)
SPLITS = {"column": Split(0, 12), "row": Split(1, 6), "fused": FUSED, "uneven": Split(0, 12, unit=3)}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_the_parts_of_all_ranks_make_up_the_whole(split, size):
    whole = torch.arange(72.0).view(12, 6)
    shares, made = Shares(size, {"w": split}), torch.zeros(12, 6)
    for position in range(size):
        part = shares.part("w", whole, position)
        assert part.shape == shares.shape("w", whole.shape, position)
        shares.write("w", made, part, position)
    assert torch.equal(made, whole)


def test_a_rank_has_the_same_stretch_of_each_block():
    views = FUSED.views(torch.arange(12), 1, 2)
    assert [view.tolist() for view in views] == [[2, 3], [6, 7], [10, 11]]


def test_units_are_never_parted():
    assert [Split(0, 12, unit=4).stretch(position, 2) for position in range(2)] == [(0, 8), (8, 4)]


def test_what_only_the_first_rank_has_the_others_do_not_hold():
    shares = Shares(2, {"bias": None, "weight": Split(0, 4)})
    assert [shares.holds("bias", position) for position in range(2)] == [True, False]
    assert all(shares.holds(name, 1) for name in ("weight", "norm"))


@pytest.mark.parametrize("size", [1, 2, 4, 7])
def test_widened_parts_add_up_to_the_whole(size):
    whole = torch.randn(2, 12, 3)
    split = Split(1, 4, blocks=3)
    total = torch.zeros_like(whole)
    for position in range(size):
        part = narrowed(whole, 1, 4, *split.stretch(position, size))
        total += widened(part, 1, 3, 4, *split.stretch(position, size))
    assert torch.equal(total, whole)
