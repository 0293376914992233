import pytest
import torch

from paceline.model.finite import is_finite, last_not_finite

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("values", [[NAN], [INF], [-INF], [INF, -INF], [INF, NAN]], ids=str)
@pytest.mark.parametrize("at", [0, 500, 995])
def test_one_value_that_is_not_finite_is_found_anywhere(values, dtype, at):
    tensor = torch.ones(1000, dtype=dtype)
    tensor[at : at + len(values)] = torch.tensor(values, dtype=dtype)
    assert not is_finite(tensor)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_whose_sum_overflows_are_finite_all_the_same(dtype):
    tensor = torch.full((1000,), torch.finfo(dtype).max, dtype=dtype)
    assert is_finite(tensor)
    tensor[7] = NAN
    assert not is_finite(tensor)


def test_no_values_are_finite():
    assert is_finite(torch.empty(0))


def test_complex_values_are_finite_if_both_their_parts_are():
    assert is_finite(torch.tensor([1 + 2j]))
    assert not is_finite(torch.tensor([complex(1, NAN)]))


def test_the_last_tensor_that_is_not_finite_is_named():
    good, bad = torch.ones(3), torch.tensor([1.0, NAN])
    assert last_not_finite([("a", good), ("b", bad), ("c", bad), ("d", good)]) == "c"
    assert last_not_finite([("a", good)]) is None
