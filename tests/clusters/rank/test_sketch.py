import numpy as np
import pytest
import torch

from paceline.clusters.rank.sketch import are_close, is_same, rounded, sketch, spread, weights_digest


def test_positions_are_spread_from_the_first_to_the_last():
    assert spread(100, 4).tolist() == [0, 33, 66, 99]
    assert spread(3, 16).tolist() == [0, 1, 2]
    assert spread(1, 16).tolist() == [0]


def a_batch(shift=0.0, target=1):
    inputs = torch.arange(12, dtype=torch.float32).reshape(3, 4) + shift
    return {"inputs": inputs, "more": [np.ones(3), "a text"], "target": torch.full((3,), target)}


def test_the_sketch_has_each_part_by_its_place():
    assert [*sketch(a_batch())] == ["inputs", "more.0", "more.1", "target"]


@pytest.mark.parametrize(("other", "part"), [(a_batch(shift=0.5), "inputs"), (a_batch(target=2), "target")])
def test_other_values_have_another_sketch(other, part):
    before, now = sketch(a_batch()), sketch(other)
    assert [name for name in before if not is_same(before[name], now[name])] == [part]


def test_values_that_differ_by_rounding_are_the_same():
    before, now = sketch(a_batch()), sketch(a_batch(shift=1e-6))
    assert all(is_same(before[name], now[name]) for name in before)


@pytest.mark.parametrize("other", [torch.zeros(4), torch.zeros(3, dtype=torch.float64), torch.zeros(3, 1)])
def test_another_shape_or_type_is_another_sketch(other):
    assert not is_same(sketch(torch.zeros(3))[""], sketch(other)[""])


def test_things_without_numbers_are_left_out():
    assert sketch([object(), None, torch.zeros(2).to_sparse()]) == {}
    assert sketch(torch.zeros(0)) == {"": ["float32 (0,)", []]}


def test_numbers_that_are_not_finite_are_equal_to_their_like_alone():
    assert rounded([float("nan"), 1 / 3]) == [None, 0.333333]
    assert are_close([None, 1.0], [None, 1.0])
    assert not are_close([None, 1.0], [2.0, 1.0])
    assert not are_close([1.0], [1.0, 1.0])


def test_weights_have_another_digest_if_one_of_them_changes():
    module = torch.nn.Linear(2, 2)
    before = weights_digest(module)
    assert weights_digest(module) == before
    module.bias.data[1] += 1e-3
    assert weights_digest(module) != before
