import numpy as np
import pytest
import torch
from gans import a_gan
from tasks import a_task, numbers
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from paceline.context import Batch
from paceline.model.optimizer.updates import all_work_elementwise
from paceline.model.replica import Replica


def a_replica(task):
    return Replica.of(task, task.build_model(0))


def a_batch(step, count=6):
    return Batch(step, 0, count, count, lambda _: np.arange(count))


def own(replica, name, of):
    """The part of a flat tensor that belongs to one model."""
    views = replica.layout.views(of)
    return torch.cat(
        [v.reshape(-1) for n, v in zip(replica.layout.names, views, strict=True) if n[0] == name]
    )


def test_an_update_leaves_the_model_alone_whose_turn_it_is_not():
    replica = a_replica(a_gan())
    for step in range(4):
        replica.gradient.copy_(numbers(replica.layout.length, seed=step))
        before = replica.parameters.clone()
        replica.apply(of=[a_batch(step)])
        moved, still = ("d", "g") if step % 2 == 0 else ("g", "d")
        assert not torch.equal(own(replica, moved, before), own(replica, moved, replica.parameters))
        assert torch.equal(own(replica, still, before), own(replica, still, replica.parameters))


@pytest.mark.parametrize("parts", [2, 5, 80])
def test_turns_on_shards_are_turns_on_the_whole(parts):
    replicas = [a_replica(a_gan(clip_norm=0.5)) for _ in range(2)]
    for step in range(6):
        for replica, shards in zip(replicas, (1, parts), strict=True):
            replica.gradient.copy_(numbers(replica.layout.length, seed=step))
            norm = float(replica.gradient.norm())
            for shard in replica.shards(shards):
                replica.apply(shard, norm, of=[a_batch(step)])
    assert torch.equal(replicas[0].parameters, replicas[1].parameters)


def test_each_turn_of_a_mixed_update_is_a_mean_over_its_own_samples():
    mixed, apart = a_replica(a_gan()), a_replica(a_gan())
    gradient = numbers(mixed.layout.length)
    # d has 6 of 8 samples, g has 2. A server has weighted the summed gradients in this way.
    mixed.gradient.copy_(gradient)
    for name, view in zip(mixed.layout.names, mixed.layout.views(mixed.gradient), strict=True):
        view.mul_(6 / 8 if name[0] == "d" else 2 / 8)
    mixed.apply(of=[a_batch(0, 6), a_batch(1, 2)])
    for step in (0, 1):
        apart.gradient.copy_(gradient)
        apart.apply(of=[a_batch(step)])
    torch.testing.assert_close(mixed.parameters, apart.parameters, rtol=0, atol=1e-15)


def test_a_rank_that_computes_nothing_takes_the_turn_of_its_step():
    replica = a_replica(a_gan())
    before = replica.parameters.clone()
    replica.gradient.fill_(1.0)
    replica.apply(step=1)
    assert torch.equal(own(replica, "d", before), own(replica, "d", replica.parameters))
    assert not torch.equal(own(replica, "g", before), own(replica, "g", replica.parameters))


def test_several_optimizers_without_turns_step_together():
    def step(model, batch):
        return (model["g"](batch[1]).mean() + model["d"](batch[0]).mean()).square()

    replica = a_replica(a_gan(step=step, turns=()))
    before = replica.parameters.clone()
    replica.gradient.fill_(1.0)
    replica.apply()
    assert not torch.equal(own(replica, "d", before), own(replica, "d", replica.parameters))
    assert not torch.equal(own(replica, "g", before), own(replica, "g", replica.parameters))


def test_parameters_may_be_cut_anywhere_if_every_optimizer_works_element_by_element():
    class Layerwise(torch.optim.SGD):
        pass

    model = a_gan().build_model(0)
    layerwise = {"g": lambda params: Layerwise(params, lr=0.1)}
    assert all_work_elementwise(a_gan(), model)
    assert not all_work_elementwise(a_gan(optimizer=a_gan().optimizer | layerwise), model)


# Schedules


def by_updates(optimizer):
    return LambdaLR(optimizer, lambda number: 1.0 / (1 + number))


def rates(replica):
    return {name: each.optimizer.param_groups[0]["lr"] for name, each in replica.updates.of().by_name.items()}


def test_each_models_schedule_goes_by_its_own_updates():
    replica = a_replica(a_gan(turns=("d", "d", "g"), schedule=by_updates))
    replica.gradient.fill_(0.1)
    for step in range(5):  # d d g d d
        replica.apply(of=[a_batch(step)])
    assert rates(replica) == pytest.approx({"g": 0.01 / 2, "d": 0.1 / 5})


def test_updates_of_others_move_each_models_schedule_by_its_turns():
    replica = a_replica(a_gan(turns=("d", "d", "g"), schedule=by_updates))
    for updates in (1, 2, 3):
        replica.advance_schedule(updates)
    assert rates(replica) == pytest.approx({"g": 0.01 / 3, "d": 0.1 / 5})


@pytest.mark.parametrize("every", [1, 3])
def test_a_schedule_is_stepped_after_so_many_updates(every):
    task = a_task(schedule=by_updates, schedule_every=every)
    replica = a_replica(task)
    replica.gradient.fill_(0.1)
    for _ in range(7):
        replica.apply()
    assert rates(replica) == pytest.approx({"": 0.1 / (1 + 7 // every)})
    replica.advance_schedule(3)
    assert rates(replica) == pytest.approx({"": 0.1 / (1 + 10 // every)})


def test_a_schedule_of_plateaus_is_stepped_with_the_metric_alone():
    def plateau(optimizer):
        return ReduceLROnPlateau(optimizer, mode="max", factor=0.5, patience=0)

    task = a_task(schedule=plateau, metric="accuracy", test=(numbers(4, 4), torch.zeros(4)))
    replica = Replica.of(task, nn.Linear(4, 2))
    assert replica.updates.wait_for_metric  # also before the first update
    replica.apply()
    assert replica.updates.wait_for_metric
    for metric, rate in ((0.5, 0.1), (0.6, 0.1), (0.6, 0.05), (0.7, 0.05)):
        replica.updates.note_metric(metric)
        replica.apply()
        replica.advance_schedule(1)
        assert rates(replica) == {"": rate}
