"""What a replica is made of: where its parameters lie, and what a rank that holds a part takes of it."""

import dataclasses

import pytest
import torch
from by_hand import cut_of
from pieces_models import task_of
from tasks import a_task
from torch import nn

from paceline.replica.blueprint import Blueprint
from paceline.replica.memory import Ledger
from paceline.replica.pieces.part import PartReplica
from paceline.replica.pieces.sharded import ShardedReplica
from paceline.replica.replica import Replica


def blueprint_of(task):
    return Blueprint(task, seed=0, rank=0, autocast=())


def as_it_comes(task):
    """A task as a rank has it: its model is built."""
    return dataclasses.replace(task, model=task.build_model(0))


def test_its_parameters_lie_where_those_of_the_task_do_and_those_of_a_replica_do_not():
    task = as_it_comes(a_task())
    given = [each.data_ptr() for each in task.model.parameters()]
    plan = blueprint_of(task)
    assert [each.data_ptr() for each in plan.module.parameters()] == given
    before = [each.clone() for each in task.model.parameters()]
    replica = plan.build()
    replica.parameters.zero_()
    assert not set(given) & {each.data_ptr() for each in replica.module.parameters()}
    assert all(map(torch.equal, task.model.parameters(), before))


def test_a_part_of_it_is_the_part_of_a_whole_replica():
    task = as_it_comes(task_of("gpt"))
    cut = cut_of(task, 3)
    whole = Replica(task, task.build_model(0))
    expected = PartReplica(whole, cut, [1], keeps_whole=False)
    found = PartReplica(blueprint_of(task), cut, [1], keeps_whole=False)
    assert torch.equal(found.parameters, expected.parameters)
    assert found.layout == expected.layout
    assert found.whole is None
    ledger = Ledger()
    found.account_in(ledger)
    assert ledger.now["parameters"] == found.parameters.nbytes


@pytest.mark.parametrize("sheds", [pytest.param(False, marks=pytest.mark.slow), True])
def test_shards_of_it_are_those_of_a_whole_replica(sheds):
    task = as_it_comes(task_of("gpt"))
    cut = cut_of(task, 1, finer=3)
    words = {"ranks": 3, "own": 1, "sheds": sheds}
    expected = ShardedReplica(Replica(task, task.build_model(0)), cut, **words)
    before = [each.clone() for each in task.model.parameters()]
    bare = blueprint_of(task).build(is_bare=True)
    assert bare.parameters.untyped_storage().nbytes() == bare.parameters.itemsize, "it has no memory yet"
    found = ShardedReplica(bare, cut, **words)
    assert torch.equal(found.parameters, expected.parameters)
    assert found.layout == expected.layout
    found.parameters.zero_()
    assert all(map(torch.equal, task.model.parameters(), before)), "those of the task are left alone"
    ledger = Ledger()
    found.account_in(ledger)
    assert ledger.now["parameters"] == found.parameters.nbytes
    assert ledger.now["gradients"] == found.gradient.nbytes < sum(each.nbytes for each in before) / 2


def test_shards_of_a_part_are_those_of_a_part_of_a_whole_replica():
    task = as_it_comes(task_of("gpt"))
    cut = cut_of(task, 2, finer=2)
    sources = Replica(task, task.build_model(0)), blueprint_of(task)
    expected, found = (
        ShardedReplica(
            PartReplica(source, cut, [0, 1], keeps_whole=False, is_bare=isinstance(source, Blueprint)),
            cut,
            ranks=2,
            own=1,
            sheds=True,
        )
        for source in sources
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
    return own & {each.data_ptr() for each in blueprint_of(task).module.parameters()}
