import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tasks import a_task, samples
from torch.utils.data import WeightedRandomSampler

from paceline.data.batches import GlobalBatches
from paceline.data.samples import Samples


@given(
    length=st.integers(1, 60),
    batch_size=st.integers(1, 70),
    workers=st.integers(1, 9),
    step=st.integers(0, 20),
    seed=st.integers(0, 2**32 - 1),
)
def test_slices_partition_the_global_batch_nearly_evenly(length, batch_size, workers, step, seed):
    batches = GlobalBatches(length, batch_size, seed)
    parts = [batches.slice(step, worker, workers) for worker in range(workers)]
    counts = [part.count for part in parts]
    assert np.concatenate([part.indices for part in parts]).tolist() == batches.indices(step).tolist()
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts, reverse=True)
    assert sum(part.weight for part in parts) == pytest.approx(1)
    assert all(part.step == step and part.total == sum(counts) for part in parts)


@given(length=st.integers(1, 60), batch_size=st.integers(1, 70), epoch=st.integers(0, 5))
def test_an_epoch_shows_every_sample_once(length, batch_size, epoch):
    batches = GlobalBatches(length, batch_size, seed=3)
    first = epoch * batches.steps_per_epoch
    seen = np.concatenate([batches.indices(first + i) for i in range(batches.steps_per_epoch)])
    assert sorted(seen) == list(range(length))


def test_every_epoch_is_shuffled_anew():
    batches = GlobalBatches(100, 100, seed=0)
    orders = {tuple(batches.indices(epoch)) for epoch in range(10)}
    assert len(orders) == 10


def test_the_order_is_set_by_the_seed():
    first, same, other = (GlobalBatches(100, 30, seed) for seed in (1, 1, 2))
    assert first.indices(7).tolist() == same.indices(7).tolist()
    assert first.indices(7).tolist() != other.indices(7).tolist()


def test_steps_may_be_asked_for_in_any_order():
    steps = [0, 9, 3, 30, 1, 15, 0, 60, 9]  # of more epochs than are cached
    batches = GlobalBatches(10, 4, seed=0)
    fresh = [GlobalBatches(10, 4, seed=0).indices(step).tolist() for step in steps]
    assert [batches.indices(step).tolist() for step in steps] == fresh


def test_a_batch_larger_than_the_data_is_all_of_it():
    batches = GlobalBatches(10, 64, seed=0)
    assert (batches.batch_size, batches.steps_per_epoch, len(batches.indices(0))) == (10, 1, 10)


@given(length=st.integers(1, 60), batch_size=st.integers(1, 70))
def test_without_the_last_batch_all_are_full(length, batch_size):
    batches = GlobalBatches(length, batch_size, seed=0, drop_last=True)
    sizes = {batches.slice(step, 0, 1).count for step in range(3 * batches.steps_per_epoch)}
    assert sizes == {batches.batch_size}
    assert batches.samples_per_epoch == length - length % batches.batch_size


@given(length=st.integers(1, 60), batch_size=st.integers(1, 70))
def test_an_epoch_has_the_samples_of_its_batches(length, batch_size):
    batches = GlobalBatches(length, batch_size, seed=0)
    counts = [batches.slice(step, 0, 1).count for step in range(batches.steps_per_epoch)]
    assert sum(counts) == batches.samples_per_epoch == length


def of(**changes):
    task = a_task(**changes)
    return GlobalBatches.of(task, Samples.of(task), seed=0)


def test_a_task_is_shuffled_unless_it_says_otherwise():
    in_order = list(range(8))
    assert of().indices(0).tolist() == GlobalBatches(24, 8, seed=0).indices(0).tolist() != in_order
    assert of(shuffle=False).indices(0).tolist() == in_order
    assert of(shuffle=False).indices(3).tolist() == in_order


def test_a_tasks_weights_set_how_often_a_sample_comes():
    assert set(of(sampler=[0] * 20 + [1] * 4).indices(5)) <= {20, 21, 22, 23}


def test_a_sampler_of_torch_says_how_long_an_epoch_is():
    batches = of(sampler=WeightedRandomSampler([1.0] * 24, num_samples=50), drop_last=True)
    assert batches.steps_per_epoch == 6


def test_a_streams_batches_follow_each_other_without_a_break():
    batches = of(data=lambda: (pair for pair in zip(*samples(), strict=True)))
    assert batches.indices(4).tolist() == list(range(32, 40))
    parts = [batches.slice(4, worker, 3) for worker in range(3)]
    assert [(part.start, part.count, part.total) for part in parts] == [(0, 3, 8), (3, 3, 8), (6, 2, 8)]
