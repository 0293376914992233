import dataclasses
import logging
import random

import numpy as np
import pytest
import torch
from refusals import has, refused
from tasks import a_task, samples, sgd, simulated
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import paceline as pl
from paceline.data.batches import GlobalBatches
from paceline.data.samples import Samples
from paceline.errors import ConfigurationError
from paceline.task.data import weights_of

LENGTH = 24


class Pairs(Dataset):
    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        return tuple(tensor[index] for tensor in samples())


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield samples()[0][0], samples()[1][0]


class Backwards(Sampler):
    def __iter__(self):
        return iter(range(LENGTH - 1, -1, -1))


def stack(rows):
    return [torch.stack(column) for column in zip(*rows, strict=True)]


def loader(dataset=None, **words):
    return DataLoader(dataset or Pairs(), **({"batch_size": 6} | words))


def a_loaded_task(given, **changes):
    words = {"model": a_task().model, "loss": a_task().loss, "optimizer": sgd}
    return pl.Task(**(words | {"data": given} | changes))


# A DataLoader as data


def test_a_loaders_settings_are_taken_over():
    given = loader(collate_fn=stack, num_workers=2, drop_last=True, shuffle=True)
    task = a_loaded_task(given)
    assert isinstance(task.data, Pairs)
    assert (task.batch_size, task.collate, task.loaders, task.drop_last, task.shuffle) == (
        6,
        stack,
        2,
        True,
        True,
    )


def test_a_loaders_prefetch_is_taken_over():
    assert a_loaded_task(loader(num_workers=1, prefetch_factor=7)).prefetch == 7
    assert a_loaded_task(loader(num_workers=1, prefetch_factor=7), prefetch=3).prefetch == 3
    assert a_loaded_task(loader()).prefetch == 2


def test_what_the_task_says_itself_counts():
    given = loader(collate_fn=stack, num_workers=2, shuffle=True)
    task = a_loaded_task(given, batch_size=4, collate=len, loaders=0, shuffle=False)
    assert (task.batch_size, task.collate, task.loaders, task.shuffle) == (4, len, 0, False)


def test_a_plain_loader_trains_as_its_dataset_does():
    run = pl.train(a_loaded_task(loader(shuffle=True)), "all-reduce", simulated(3), steps=4)
    expected = pl.train(a_task(batch_size=6), "all-reduce", simulated(3), steps=4)
    torch.testing.assert_close(run.parameters, expected.parameters, rtol=0, atol=1e-12)


def test_a_loader_of_tensors_takes_the_fast_path():
    task = a_loaded_task(loader(TensorDataset(*samples())))
    assert isinstance(task.build_data(), tuple)
    assert not Samples.of(task).draws


def test_a_loader_that_does_not_shuffle_keeps_the_order():
    task = a_loaded_task(loader())
    assert GlobalBatches.of(task, Samples.of(task), 0).indices(1).tolist() == list(range(6, 12))


def test_a_batch_sampler_of_torch_is_taken_over():
    given = DataLoader(Pairs(), batch_sampler=BatchSampler(RandomSampler(Pairs()), 5, drop_last=True))
    task = a_loaded_task(given)
    assert (task.batch_size, task.drop_last, task.shuffle) == (5, True, True)


def test_weights_are_taken_over():
    sampler = WeightedRandomSampler([0.0] * 20 + [1.0] * 4, num_samples=12)
    task = a_loaded_task(loader(sampler=sampler))
    batches = GlobalBatches.of(task, Samples.of(task), 0)
    assert batches.steps_per_epoch == 2
    assert batches.indices(0).min() >= 20


def test_a_subset_is_taken_over():
    task = a_loaded_task(loader(sampler=SubsetRandomSampler([3, 5, 8])))
    dataset = task.build_data()
    assert (len(dataset), task.shuffle) == (3, True)
    assert torch.equal(dataset[1][0], samples()[0][5])


def test_a_distributed_sampler_is_named_and_its_order_taken_over(caplog):
    sampler = DistributedSampler(Pairs(), num_replicas=2, rank=1, shuffle=False)
    with caplog.at_level(logging.WARNING, logger="paceline"):
        task = a_loaded_task(loader(sampler=sampler))
    assert (len(task.data), task.shuffle) == (LENGTH, False)
    assert "DistributedSampler" in caplog.text


def test_a_stream_in_a_loader_is_a_stream():
    task = a_loaded_task(loader(Endless()))
    assert Samples.of(task).is_stream
    assert len(pl.train(task, "all-reduce", simulated(2), steps=3).history) == 3


def test_what_is_not_taken_over_is_named_in_one_line(caplog):
    given = loader(generator=torch.Generator(), worker_init_fn=print, num_workers=1, timeout=3)
    with caplog.at_level(logging.WARNING, logger="paceline"):
        task = a_loaded_task(given)
        dataclasses.replace(task, batch_size=2)
    (record,) = caplog.records
    assert all(word in record.getMessage() for word in ("generator", "worker_init_fn", "timeout"))


def test_nothing_is_said_of_a_loader_that_is_taken_over_whole(caplog):
    with caplog.at_level(logging.WARNING, logger="paceline"):
        a_loaded_task(loader(shuffle=True, num_workers=2, drop_last=True, persistent_workers=True))
    assert not caplog.records


@pytest.mark.parametrize(
    "given",
    [
        DataLoader(Pairs(), batch_size=None),
        DataLoader(Pairs(), batch_sampler=[[1, 2], [3]]),
        loader(sampler=Backwards()),
        loader(sampler=RandomSampler(Pairs(), replacement=True)),
        loader(sampler=WeightedRandomSampler([1.0] * LENGTH, 5, replacement=False)),
        loader(Endless(), worker_init_fn=print),
        DataLoader(Endless(), batch_size=None),
    ],
    ids=[
        "no batches",
        "own batches",
        "own order",
        "replacement",
        "no replacement",
        "init",
        "stream of batches",
    ],
)
def test_a_loader_that_would_mean_something_else_is_refused(given):
    with pytest.raises(ConfigurationError) as caught:
        a_loaded_task(given)
    assert caught.value.remedy


def test_a_factory_of_a_loader_is_refused():
    with refused("data", has("DataLoader")):
        a_task(data=loader).build_data()


def test_a_loader_may_bring_the_test_samples():
    task = a_task(test=loader(collate_fn=stack, sampler=SubsetRandomSampler([1, 2])))
    assert (len(task.build_test()), task.test_collate) == (2, stack)
    assert len(Samples.of_test(task).fetch(np.array([0, 1]))[0]) == 2


def test_test_samples_are_collated_as_the_training_samples_unless_they_say_otherwise():
    assert Samples.of_test(a_task(test=Pairs(), collate=len)).fetch(np.array([0, 1])) == 2
    assert (
        Samples.of_test(a_task(test=Pairs(), collate=len, test_collate=repr)).fetch(np.array([0]))[0] == "["
    )
    assert Samples.of_test(a_task()) is None


def test_test_samples_that_are_weighted_are_refused():
    with refused("test", "WeightedRandomSampler"):
        a_task(test=loader(sampler=WeightedRandomSampler([1.0] * LENGTH, 5)))


# Arrays


def test_arrays_become_tensors_of_the_same_memory():
    inputs, targets = (tensor.numpy() for tensor in samples())
    built = a_task(data=(inputs, targets)).build_data()
    assert built[0].data_ptr() == inputs.ctypes.data
    run = pl.train(a_task(data=(inputs, targets)), "single", simulated(1), steps=2)
    assert torch.equal(run.parameters, pl.train(a_task(), "single", simulated(1), steps=2).parameters)


def test_a_mapped_file_that_cannot_be_written_to_is_no_reason_to_warn(tmp_path, recwarn):
    np.save(tmp_path / "inputs.npy", samples()[0].numpy())
    inputs = np.load(tmp_path / "inputs.npy", mmap_mode="r")
    a_task(data=(inputs, samples()[1])).build_data()
    assert not [warning for warning in recwarn if "writable" in str(warning.message)]


# Very many samples


class Billion(Dataset):
    """More samples than any memory holds the numbers of."""

    def __len__(self):
        return 10**9

    def __getitem__(self, index):
        return tuple(tensor[index % LENGTH] for tensor in samples())


def test_a_billion_samples_are_trained_on_as_few_are():
    runs = [
        pl.train(a_task(data=Billion()), spec, simulated(3), steps=2) for spec in ("single", "all-reduce")
    ]
    torch.testing.assert_close(runs[0].parameters, runs[1].parameters, rtol=0, atol=1e-12)


# Streams


def generate():
    yield from zip(*samples(), strict=True)


@pytest.mark.parametrize(
    "data",
    [generate, lambda: iter(list(generate()))],
    ids=["generator", "iterator"],
)
def test_a_function_that_makes_an_iterator_is_a_stream(data):
    expected = pl.train(a_task(shuffle=False), "single", simulated(1), steps=7)
    run = pl.train(a_task(data=data), "all-reduce", simulated(3), steps=7)
    torch.testing.assert_close(run.parameters, expected.parameters, rtol=0, atol=1e-12)


@pytest.mark.parametrize("data", [generate(), iter([1, 2])], ids=["generator", "iterator"])
def test_an_iterator_is_refused_because_it_has_one_pass_only(data):
    with refused("data", data) as caught:
        a_task(data=data)
    assert "data=make_samples" in caught.value.remedy


@pytest.mark.parametrize("words", [{"shuffle": True}, {"drop_last": True}, {"sampler": [1, 2]}], ids=str)
@pytest.mark.parametrize(
    "data", [Endless(), generate, lambda: iter([1])], ids=["dataset", "generator", "iterator"]
)
def test_a_stream_has_its_own_order(data, words):
    with refused(*next(iter(words.items()))):
        a_task(data=data, **words).build_data()


@pytest.mark.parametrize("words", [{}, {"epochs": 2}], ids=str)
def test_a_stream_of_unknown_length_is_counted_in_steps(words):
    with refused("data") as caught:
        pl.train(a_task(data=Endless()), "single", simulated(1), **words)
    assert "steps=" in caught.value.remedy


def test_a_stream_that_knows_its_length_may_be_counted_in_epochs():
    class Sized(Endless):
        def __len__(self):
            return 20

    assert pl.train(a_task(data=Sized()), "single", simulated(1), epochs=2).steps == 5


@pytest.mark.parametrize("spec", ["fedavg", "fedavg:partition=dirichlet"])
def test_a_strategy_that_parts_the_data_refuses_a_stream(spec):
    with refused("data"):
        pl.train(a_task(data=Endless()), spec, simulated(2), steps=1)


def test_workers_that_go_at_their_own_pace_read_a_stream_too():
    cluster = pl.Simulated(workers=4, compute=pl.times.Exponential(0.01), slow={0: 30.0})
    first, second = (pl.train(a_task(data=noisy), "async", cluster, steps=60) for _ in range(2))
    assert torch.equal(first.parameters, second.parameters)


def noisy():
    for inputs, targets in generate():
        yield inputs + random.random(), targets


# Bad input


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("loaders", -1),
        ("loaders", 1.5),
        ("loaders", True),
        ("prefetch", 0),
        ("prefetch", "2"),
        ("collate", "pad"),
        ("test_collate", 3),
        ("shuffle", "yes"),
        ("drop_last", 1),
        ("sampler", [1.0] * 23),
        ("sampler", [[1.0] * 24]),
        ("sampler", [-1.0] + [1.0] * 23),
        ("sampler", [float("nan")] + [1.0] * 23),
        ("sampler", [0.0] * 24),
        ("sampler", "uniform"),
        ("sampler", Backwards()),
        ("sampler", WeightedRandomSampler([1.0] * 23, 24)),
    ],
)
def test_a_bad_argument_is_refused_by_name(argument, value):
    with pytest.raises(ConfigurationError) as caught:
        a_task(**{argument: value})
    assert caught.value.argument == argument
    assert caught.value.remedy


def test_weights_and_a_shuffle_do_not_go_together():
    with refused("shuffle", True):
        a_task(sampler=[1.0] * 24, shuffle=True)


def test_the_first_bad_weight_is_named():
    with refused("sampler", has("2.0", 1)):
        weights_of([1.0, -2.0, -3.0], 3)


def test_weights_for_data_of_a_factory_are_checked_when_it_is_made():
    task = a_task(data=samples, sampler=[1.0] * 23)
    with refused("sampler", [23], bound=has(24)):
        GlobalBatches.of(task, Samples.of(task), 0)


def test_a_task_without_a_batch_size_is_refused_unless_a_loader_brings_one():
    with refused("batch_size", 0, bound=has(1)):
        a_loaded_task(Pairs())
