"""A replica that stores a part of each segment."""

import pytest
import torch
from by_hand import compute_whole, cut_of, first_batch
from segmented_models import gpt_task

from paceline.context import BoundaryValues
from paceline.model.holding import Sharding
from paceline.model.replica import Replica

RANKS, SEGMENTS = 3, 4


def replicas(task, *, frees_parameters, segments=SEGMENTS):
    cut = cut_of(task, 1, finer=segments)
    return [
        Replica.of(task, task.build_model(0)).sharded(cut, Sharding(RANKS, own, frees_parameters))
        for own in range(RANKS)
    ]


def gather(shared):
    """Replaces messages between ranks: each rank fills the memory of the others."""
    for place, unit in enumerate(shared[0].holding.units):
        wholes = [replica.shared_units.gather(place) for replica in shared]
        for own, part in enumerate(unit.shards):
            for whole in wholes:
                whole[part] = wholes[own][part]


def test_the_parts_of_all_ranks_make_up_the_gradient_of_the_whole_model():
    task = gpt_task()
    _, expected, _ = compute_whole(task)
    for replica in (shared := replicas(task, frees_parameters=True)):
        replica.begin_batch()
    gather(shared)
    samples, batch = first_batch(task)
    first, given, gradients = shared[0], BoundaryValues(), ()
    for segment in range(SEGMENTS):
        made = first.forward(segment, batch, 0, samples, given)
        given = made if isinstance(made, BoundaryValues) else BoundaryValues()
    for segment in reversed(range(SEGMENTS)):
        gradients = first.backward(segment, 0, gradients)
    flats = [first.shared_units.unit_gradient(place).clone() for place in range(len(first.holding.units))]
    found = dict(zip(first.layout.names, first.layout.views(torch.cat(flats)), strict=True))
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("frees_parameters", [False, True])
def test_the_gradient_kept_is_that_of_the_own_parts(frees_parameters):
    replica = replicas(gpt_task(), frees_parameters=frees_parameters)[1]
    replica.begin_batch()
    for place, unit in enumerate(replica.holding.units):
        own = unit.shards[1]
        replica.shared_units.keep_gradient(
            place, torch.full((own.stop - own.start,), place + 1.0, dtype=torch.float64)
        )
    lengths = [unit.shards[1].stop - unit.shards[1].start for unit in replica.holding.units]
    expected = torch.cat([torch.full((n,), k + 1.0) for k, n in enumerate(lengths)]).double()
    assert torch.equal(replica.gradient, expected)


def test_who_sheds_has_a_part_of_the_parameters_and_no_memory_for_the_rest():
    whole = Replica.of(gpt_task(), gpt_task().build_model(0)).parameters.numel()
    shared = replicas(gpt_task(), frees_parameters=True)
    assert sum(replica.parameters.numel() for replica in shared) == whole
    assert all(p.untyped_storage().nbytes() == 0 for p in shared[0].module.parameters())


def test_gathered_parameters_are_those_of_the_model_and_are_gone_with_the_next_batch():
    task = gpt_task()
    expected = task.build_model(0).state_dict()
    shared = replicas(task, frees_parameters=True)
    gather(shared)
    state = shared[2].inspection.state()
    assert all(torch.equal(state[name], tensor) for name, tensor in expected.items())
    shared[2].begin_batch()
    assert all(p.untyped_storage().nbytes() == 0 for p in shared[2].module.parameters())


def test_who_sheds_nothing_updates_its_part_in_place():
    replica = replicas(gpt_task(), frees_parameters=False)[0]
    before = replica.parameters.clone()
    replica.begin_batch()
    replica.gradient.fill_(1.0)
    replica.apply()
    changed = (replica.parameters != before).nonzero().flatten().tolist()
    owned = [n for unit in replica.holding.units for n in range(unit.own(0).start, unit.own(0).stop)]
    assert changed == owned
