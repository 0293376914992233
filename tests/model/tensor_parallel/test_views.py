"""A split dimension through a view."""

import pytest
import torch

from paceline.model.tensor_parallel.spec import Split, narrowed
from paceline.model.tensor_parallel.views import Refine, viewed

VIEWS = [
    ("heads", Split(2, 8, unit=2), (5, 6, 8), (5, 6, 4, 2), Split(2, 4)),
    ("merged", Split(2, 4), (5, 6, 4, 2), (5, 6, 8), Split(2, 8, unit=2)),
    ("three", Split(2, 8, blocks=3, unit=2), (5, 6, 24), (5, 6, 3, 4, 2), Split(3, 4)),
    ("with the batch", Split(2, 8, unit=2), (6, 5, 8), (6, 20, 2), Split(1, 4, blocks=5)),
    ("out of the batch", Split(0, 4, blocks=5), (20, 6, 2), (5, 4, 6, 2), Split(1, 4)),
    ("flat", Split(2, 8), (5, 6, 8), (30, 8), Split(1, 8)),
    ("another", Split(0, 8), (8, 6), (8, 2, 3), Split(0, 8)),
]


@pytest.mark.parametrize(
    ("before", "shape", "other", "after"), [v[1:] for v in VIEWS], ids=[v[0] for v in VIEWS]
)
def test_a_part_viewed_is_the_part_of_what_is_viewed(before, shape, other, after):
    assert viewed(before, shape, other) == after
    whole = torch.arange(torch.Size(shape).numel()).view(shape)
    part = narrowed(whole, before.dim, before.length, *before.stretch(1, 2))
    expected = narrowed(whole.view(other), after.dim, after.length, *after.stretch(1, 2))
    assert torch.equal(part.reshape(expected.shape), expected)


def test_heads_need_whole_units():
    with pytest.raises(Refine) as wish:
        viewed(Split(2, 8, origins=frozenset(["w"])), (5, 6, 8), (5, 6, 4, 2))
    assert (wish.value.unit, wish.value.origins) == (2, {"w"})


def test_groups_of_heads_need_units_of_as_many_columns():
    heads = viewed(Split(2, 8, unit=2), (5, 6, 8), (5, 6, 4, 2))
    with pytest.raises(Refine) as wish:
        viewed(heads, (5, 6, 4, 2), (5, 6, 2, 2, 2))
    assert wish.value.unit == 4


def test_a_dimension_that_is_torn_apart_has_no_split():
    assert viewed(Split(1, 6), (4, 6), (3, 8)) is None
