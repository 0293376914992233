import math

import pytest
import torch

from paceline.collectives import tensors
from paceline.collectives.tensors import add, copy_of, cut, number_in, overwrite, spare_like, square_of, weigh


def test_a_shard_is_a_view():
    whole = torch.zeros(5)
    first, second = cut(whole, [slice(0, 3), slice(3, 5)])
    first += 1
    second += 2
    assert whole.tolist() == [1, 1, 1, 2, 2]


def test_the_only_shard_is_the_tensor_itself():
    whole = torch.zeros(5)
    assert cut(whole, [slice(0, 5)])[0] is whole


def test_tensors_are_summed_by_their_weights():
    into = torch.full((3,), 9.0)
    weigh(into, [(torch.ones(3), 0.5), (torch.full((3,), 2.0), 0.25)])
    assert into.tolist() == [1.0] * 3


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_the_first_of_a_sum_may_be_where_the_sum_goes(weight):
    into = torch.full((3,), 2.0)
    weigh(into, [(into, weight), (torch.ones(3), 1.0)])
    assert into.tolist() == [2 * weight + 1] * 3


def test_a_weighted_difference_is_added():
    tensor = torch.ones(2)
    add(tensor, torch.full((2,), 5.0), minus=torch.ones(2), weight=0.5)
    assert tensor.tolist() == [3.0, 3.0]


def test_a_copy_is_memory_of_its_own_and_a_spare_too():
    tensor = torch.ones(2)
    copy, spare = copy_of(tensor), spare_like(tensor)
    overwrite(copy, torch.zeros(2))
    spare.fill_(7)
    assert tensor.tolist() == [1, 1]
    assert copy.tolist() == [0, 0]


def test_squares_are_summed_in_double_precision():
    assert number_in(square_of(torch.tensor([3.0, 4.0], dtype=torch.bfloat16))) == 25


def test_what_has_no_data_stays_as_it_is():
    blank = torch.empty(3, device="meta")
    weigh(blank, [(blank, 2.0)])
    add(blank, blank)
    overwrite(blank, blank)
    assert copy_of(blank) is blank
    assert spare_like(blank) is blank
    assert math.isnan(number_in(square_of(blank)))


def test_no_strategy_and_no_collective_asks_how_tensors_are_laid_out():
    from pathlib import Path

    package = Path(tensors.__file__).parents[1]
    files = [package / "collectives/patterns.py", *(package / "strategies").rglob("*.py")]
    words = ("is_meta", "resize_(", "untyped_storage")
    assert not [(file.name, word) for file in files for word in words if word in file.read_text()]
