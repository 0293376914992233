import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import has, raised, refused
from tasks import a_task
from tasks import samples as tasks_samples
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from paceline.context import Batch
from paceline.data.samples import Samples


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
    assert samples.read_targets().tolist() == [0, 1, 4, 9, 16]
    assert samples.read_targets() is samples.read_targets()


def batch_of(*numbers):
    indices = np.array(numbers)
    return Batch(3, 0, len(indices), len(indices), lambda _step: indices)


class Rows(Dataset):
    """Lists of different lengths, fetched several at a time."""

    def __len__(self):
        return 9

    def __getitem__(self, index):
        raise AssertionError("one by one")

    def __getitems__(self, indices):
        if 8 in indices:
            raise ValueError("not there")
        return [[index] * index for index in indices]


def test_a_collate_function_makes_the_batch():
    assert Samples(Rows(), collate=lambda rows: [len(row) for row in rows]).fetch(np.array([2, 5])) == [2, 5]


def test_a_collate_function_is_given_the_samples_of_tensors_too():
    data = (torch.arange(4.0), torch.arange(4))
    assert Samples(data, collate=len).fetch(np.array([1, 2, 3])) == 3


def test_samples_that_fail_together_are_named():
    with raised(ValueError, "not there") as caught:
        Samples(Rows(), collate=list).fetch(np.array([1, 8, 2]))
    assert caught.value.__notes__ == ["while samples 1, 8, 2 of the data were fetched"]


def test_a_collate_function_that_fails_names_the_sample():
    def collate(rows):
        assert all(len(row) < 5 for row in rows)
        return rows

    with refused("collate", has(6, 1)):
        Samples(Rows(), collate=collate).fetch(np.array([1, 3, 6, 7]))


class Noise(Dataset):
    """A dataset that draws its samples from every generator."""

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return torch.tensor([index, random.random(), np.random.rand(), torch.rand(1).item()])


def test_a_batch_is_set_by_its_number_alone():
    samples = Samples(Noise())
    first = samples.content(batch_of(1, 2), 77)
    after = random.random(), np.random.rand()
    random.random()
    assert torch.equal(samples.content(batch_of(1, 2), 77), first)
    assert (random.random(), np.random.rand()) == after
    assert torch.equal(samples.load(np.array([1, 2]), 77), first)
    assert not torch.equal(samples.content(batch_of(1, 2), 78), first)


def test_what_a_model_draws_after_a_batch_does_not_repeat_the_batch():
    content = Samples(Noise()).content(batch_of(1), 77)
    drawn = random.random(), np.random.rand(), torch.rand(1).item()
    assert not any(a == pytest.approx(b) for a, b in zip(content[0, 1:].tolist(), drawn, strict=True))


def test_plain_tensors_leave_chance_alone():
    random.seed(1)
    expected = random.random()
    random.seed(1)
    Samples((torch.zeros(5), torch.zeros(5))).content(batch_of(1, 2), 77)
    assert random.random() == expected


def test_a_stream_is_read_by_position():
    samples = Samples.of(a_task(data=lambda: iter(zip(*tasks_samples(), strict=True)), batch_size=5))
    inputs, targets = samples.fetch(np.array([25, 26]))
    assert torch.equal(inputs, tasks_samples()[0][1:3])
    assert torch.equal(targets, tasks_samples()[1][1:3])


def test_a_stream_has_no_length_unless_it_says_so():
    class Sized(IterableDataset):
        def __iter__(self):
            return iter([])

        def __len__(self):
            return 7

    with refused("data") as caught:
        _ = Samples.of(a_task(data=lambda: iter([1]))).length
    assert "steps=" in caught.value.remedy
    assert Samples.of(a_task(data=Sized())).length == 7


@pytest.mark.parametrize("what", [lambda samples: samples.count, lambda samples: samples.read_targets()])
def test_a_stream_cannot_be_parted_by_sample_numbers(what):
    with refused("data"):
        what(Samples.of(a_task(data=lambda: iter([1]))))
