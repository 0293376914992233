"""Memory is allocated for what a rank holds: a replica that is not built uses the memory of the task."""

import dataclasses

import pytest
import torch
from by_hand import cut_of
from segmented_models import task_of
from tasks import a_task
from torch import nn

from paceline.model.holding import Sharding
from paceline.model.memory import Ledger
from paceline.model.portable import module_in_place
from paceline.model.replica import Replica


def lazy_replica(task, ledger=None):
    """A replica as a rank has it at first: no memory is allocated yet."""
    replica = Replica.of(task, module_in_place(task, 0))
    replica.attach(ledger or Ledger(), lambda: None)
    return replica


def built_replica(task):
    replica = Replica.of(task, task.build_model(0))
    replica.build()
    return replica


def as_it_comes(task):
    """A task as a rank has it: its model is built."""
    return dataclasses.replace(task, model=task.build_model(0))


def test_its_parameters_lie_where_those_of_the_task_do_and_those_of_a_replica_do_not():
    task = as_it_comes(a_task())
    given = [each.data_ptr() for each in task.model.parameters()]
    replica = lazy_replica(task)
    assert [each.data_ptr() for each in replica.module.parameters()] == given
    before = [each.clone() for each in task.model.parameters()]
    replica.build()
    replica.parameters.zero_()
    assert not set(given) & {each.data_ptr() for each in replica.module.parameters()}
    assert all(map(torch.equal, task.model.parameters(), before))


def test_a_part_of_it_is_the_part_of_a_whole_replica():
    task = as_it_comes(task_of("gpt"))
    cut = cut_of(task, 3)
    expected = built_replica(task).part(cut, [1])
    ledger = Ledger()
    found = lazy_replica(task, ledger).part(cut, [1])
    assert torch.equal(found.parameters, expected.parameters)
    assert found.layout == expected.layout
    assert found.whole is None
    assert ledger.now["parameters"] == found.parameters.nbytes


@pytest.mark.parametrize("frees_parameters", [pytest.param(False, marks=pytest.mark.slow), True])
def test_shards_of_it_are_those_of_a_whole_replica(frees_parameters):
    task = as_it_comes(task_of("gpt"))
    cut = cut_of(task, 1, finer=3)
    sharding = Sharding(ranks=3, own=1, frees_parameters=frees_parameters)
    expected = built_replica(task).sharded(cut, sharding)
    before = [each.clone() for each in task.model.parameters()]
    ledger = Ledger()
    lazy = lazy_replica(task, ledger)
    assert ledger.peak["total"] == 0, "it has no memory yet"
    found = lazy.sharded(cut, sharding)
    assert torch.equal(found.parameters, expected.parameters)
    assert found.layout == expected.layout
    found.parameters.zero_()
    assert all(map(torch.equal, task.model.parameters(), before)), "those of the task are left alone"
    assert ledger.now["parameters"] == found.parameters.nbytes
    assert ledger.now["gradients"] == found.gradient.nbytes < sum(each.nbytes for each in before) / 2


def test_shards_of_a_part_are_those_of_a_part_of_a_whole_replica():
    task = as_it_comes(task_of("gpt"))
    cut = cut_of(task, 2, finer=2)
    sharding = Sharding(ranks=2, own=1, frees_parameters=True)
    expected, found = (
        source.sharded(cut, sharding, [0, 1]) for source in (built_replica(task), lazy_replica(task))
    )
    assert torch.equal(found.parameters, expected.parameters)
    assert found.layout == expected.layout


def test_parameters_of_several_types_and_frozen_ones_are_copied():
    def mixed():
        return nn.ModuleDict({"a": nn.Linear(2, 2).double(), "b": nn.Linear(2, 2)})

    task = as_it_comes(a_task(model=mixed))
    assert not shared(task)
    task = as_it_comes(a_task())
    first = next(task.model.parameters())
    first.requires_grad_(False)
    assert first.data_ptr() not in shared(task)
    assert shared(task)


def shared(task):
    own = {each.data_ptr() for each in task.model.parameters()}
    return own & {each.data_ptr() for each in lazy_replica(task).module.parameters()}
