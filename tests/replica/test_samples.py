import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, TensorDataset

from paceline.replica.samples import Samples


class Squares(Dataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        assert type(index) is int
        return torch.tensor([float(index)]), torch.tensor(index**2)


@pytest.mark.parametrize("wrap", [tuple, lambda tensors: TensorDataset(*tensors)], ids=["tuple", "dataset"])
def test_tensors_are_fetched_as_inputs_and_a_target(wrap):
    left, right, target = torch.arange(6.0), torch.arange(12).view(6, 2), torch.arange(6)
    *inputs, fetched = Samples(wrap((left, right, target))).fetch(np.array([4, 1]))
    assert [part.tolist() for part in inputs] == [[4, 1], [[8, 9], [2, 3]]]
    assert fetched.tolist() == [4, 1]


def test_a_datasets_samples_are_collated():
    *inputs, target = Samples(Squares()).fetch(np.array([3, 0]))
    assert inputs[0].tolist() == [[3], [0]]
    assert target.tolist() == [9, 0]


@given(st.integers(1, 40), st.integers(1, 50))
def test_ranges_cover_all_samples_in_order(length, size):
    ranges = Samples((torch.zeros(length), torch.zeros(length))).ranges(size)
    assert np.concatenate(ranges).tolist() == list(range(length))
    assert all(len(part) <= size for part in ranges)


@pytest.mark.parametrize(
    "data", [Squares(), (torch.zeros(5, 1), torch.arange(5) ** 2)], ids=["dataset", "tensors"]
)
def test_targets_are_of_every_sample_and_one_array_however_often_they_are_asked_for(data):
    samples = Samples(data)
    assert samples.targets().tolist() == [0, 1, 4, 9, 16]
    assert samples.targets() is samples.targets()
