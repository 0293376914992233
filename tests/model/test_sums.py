import pytest
import torch
from tasks import numbers

from paceline.model.sums import BLOCK, combine_into, combine_rows

FUNCTIONS = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}


@pytest.mark.parametrize("length", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("combine", FUNCTIONS)
def test_rows_are_combined_from_the_left_to_the_last_bit(length, count, combine):
    rows = list(numbers(count, length, dtype=torch.float32))
    expected = rows[0]
    for row in rows[1:]:
        expected = FUNCTIONS[combine](expected, row)
    into = torch.full((length,), torch.nan)
    combine_rows(rows, into, torch.empty(BLOCK), combine)
    assert torch.equal(into, expected)


def test_the_result_may_take_the_last_rows_place():
    rows = numbers(4, 2 * BLOCK + 1, dtype=torch.float32)
    expected = ((rows[0] + rows[1]) + rows[2]) + rows[3]
    combine_rows(list(rows), rows[3], torch.empty(BLOCK))
    assert torch.equal(rows[3], expected)


@pytest.mark.parametrize("combine", ["copy", *FUNCTIONS])
def test_two_tensors_are_combined_in_the_place_of_the_first(combine):
    own, other = numbers(7), numbers(7, seed=1)
    expected = FUNCTIONS[combine](own, other) if combine in FUNCTIONS else other
    combine_into(own, other, combine)
    assert torch.equal(own, expected)
