import numpy as np
import pytest
import torch
from tasks import WORLDS, a_task
from torch.utils.data import Dataset, default_collate

import paceline as pl
from paceline.errors import ConfigurationError, WorkerError
from paceline.replica.collating import collated, fetched


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
    with pytest.raises(ConfigurationError) as caught:
        collated(default_collate, of_lengths(2, 2, 3), [7, 9, 11])
    assert caught.value.argument == "data"
    assert "sample 11: (of shape (3,) and torch.float32, of type float); sample 7:" in str(caught.value)
    assert "Task(collate=" in str(caught.value)


def test_a_sample_of_a_type_that_torch_does_not_know_is_named_alone():
    with pytest.raises(ConfigurationError, match=r"'sample 7: \(of type object\)'"):
        collated(default_collate, [(object(),), (object(),)], [7, 9])


def test_dictionaries_are_told_by_their_names():
    samples = [{"ids": torch.ones(2)}, {"ids": torch.ones(3)}]
    with pytest.raises(ConfigurationError, match=r"sample 9: \(ids of shape \(3,\)"):
        collated(default_collate, samples, [7, 9])


def test_a_collate_of_the_users_own_is_named_with_its_traceback():
    def strict(samples):
        assert all(len(inputs) == 2 for inputs, _ in samples)
        return samples

    with pytest.raises(ConfigurationError, match=r"(?s)collate must put.*sample 9: .*in strict") as caught:
        collated(strict, of_lengths(2, 3), [7, 9])
    assert caught.value.argument == "collate"


def test_where_only_all_together_fail_their_numbers_are_told():
    def small(samples):
        if len(samples) > 2:
            raise ValueError("too many")

    with pytest.raises(ConfigurationError, match=r"samples 0, 1, 2, 3, 4, 5, 6, 7 …"):
        collated(small, of_lengths(*[2] * 10), list(range(10)))


def test_an_error_of_the_dataset_is_its_own_with_the_samples_number():
    with pytest.raises(IndexError) as caught:
        fetched([1, 2], [0, 1, 5])
    assert caught.value.__notes__ == ["while sample 5 of the data was fetched"]


class Ragged(Dataset):
    """The last sample is longer than the others; or it is not there."""

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
    with pytest.raises(ConfigurationError, match=r"data must have samples .*sample \d+: .*float64"):
        pl.train(a_task(data=Ragged()), "all-reduce", cluster, steps=3)
    with pytest.raises(WorkerError, match=r"(?s)no such file.*while sample 23 of the data was fetched"):
        pl.train(a_task(data=Ragged(broken=True)), "all-reduce", cluster, steps=3)
