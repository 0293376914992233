import numpy as np
import pytest
import torch
from refusals import has, raised, refused
from tasks import WORLDS, a_task
from torch.utils.data import Dataset, default_collate

import paceline as pl
from paceline.data.collating import collated, fetched
from paceline.errors import WorkerError


def padded(samples):
    longest = max(len(inputs) for inputs, _ in samples)
    rows = [torch.nn.functional.pad(inputs, (0, longest - len(inputs))) for inputs, _ in samples]
    return torch.stack(rows), torch.tensor([target for _, target in samples])


def of_lengths(*lengths):
    return [(torch.ones(length), 1.0) for length in lengths]


def test_samples_are_put_together():
    inputs, targets = collated(padded, of_lengths(2, 3), [7, 9])
    assert inputs.shape == (2, 3)
    assert targets.tolist() == [1.0, 1.0]


def test_the_sample_that_does_not_fit_is_named():
    shapes = has("sample 11", "(3,)", "torch.float32", "float", "sample 7")
    with refused("data", shapes, remedy=has("collate")):
        collated(default_collate, of_lengths(2, 2, 3), [7, 9, 11])


def test_a_sample_of_a_type_that_torch_does_not_know_is_named_alone():
    with refused("data", has(7)):
        collated(default_collate, [(object(),), (object(),)], [7, 9])


def test_dictionaries_are_told_by_their_names():
    samples = [{"ids": torch.ones(2)}, {"ids": torch.ones(3)}]
    with refused("data", has(9, 3)):
        collated(default_collate, samples, [7, 9])


def test_a_collate_of_the_users_own_is_named_with_its_traceback():
    def strict(samples):
        assert all(len(inputs) == 2 for inputs, _ in samples)
        return samples

    with refused("collate", has(9)) as caught:
        collated(strict, of_lengths(2, 3), [7, 9])
    assert caught.value.argument == "collate"


def test_where_only_all_together_fail_their_numbers_are_told():
    def small(samples):
        if len(samples) > 2:
            raise ValueError("too many")

    with refused("collate", has(0, 1, 2, 3, 4, 5, 6, 7)):
        collated(small, of_lengths(*[2] * 10), list(range(10)))


def test_an_error_of_the_dataset_is_its_own_with_the_samples_number():
    with pytest.raises(IndexError) as caught:
        fetched([1, 2], [0, 1, 5])
    assert caught.value.__notes__ == ["while sample 5 of the data was fetched"]


class Ragged(Dataset):
    """Samples of which the last one is longer than the others, or missing."""

    def __init__(self, *, broken=False):
        self.broken = broken

    def __len__(self):
        return 24

    def __getitem__(self, number):
        if self.broken and number == 23:
            raise OSError("no such file")
        return np.ones(5 if number == 23 else 4), np.ones(2)


@pytest.mark.parametrize("world", WORLDS)
def test_a_run_names_the_sample(world):
    cluster = WORLDS[world](2)
    with refused("data", has("float64")):
        pl.train(a_task(data=Ragged()), "all-reduce", cluster, steps=3)
    with raised(WorkerError, traceback=has(23)):
        pl.train(a_task(data=Ragged(broken=True)), "all-reduce", cluster, steps=3)
