"""Evaluations of a run, and schedules that depend on them, in every world and with every strategy."""

import itertools
from functools import partial

import pytest
import torch
from conformance.cases import LOCAL, SPECS, SYNCHRONOUS, one_in
from refusals import refused
from strategies.server_cases import Wrapped
from tasks import WORLDS, a_task, samples, simulated
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

import paceline as pl
from paceline.data.batches import GlobalBatches
from paceline.strategies import STRATEGIES
from paceline.testing.checks import check_close

STEPS = 6


def error(outputs, targets):
    return nn.functional.mse_loss(outputs, targets).item()


def test_the_first_metric_counts_and_the_others_are_in_the_history():
    task = a_task(
        test=samples(), metric={"error": error, "mean": lambda outputs, _: outputs.mean()}, target=9.0
    )
    for spec, world in itertools.product(["all-reduce", "hogwild", "local-sgd:period=2"], WORLDS):
        run = pl.train(task, spec, WORLDS[world](2), steps=4, evaluate_every=2)
        assert run.history[-1].metric == pytest.approx(error(run.model(samples()[0]), samples()[1]), rel=1e-9)
        assert run.history[-1].extra["mean"] == pytest.approx(run.model(samples()[0]).mean().item(), rel=1e-9)
        assert all(("mean" in record.extra) == (record.metric is not None) for record in run.history)


# The moving average


def averaged_by_torch(task, steps, decay):
    """`torch.optim.swa_utils` in a loop of plain PyTorch."""
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    model = task.build_model(0)
    optimizer = task.build_optimizer(model)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    batches, (inputs, targets) = GlobalBatches(24, task.batch_size, 0), task.build_data()
    for step in range(steps):
        chosen = torch.from_numpy(batches.indices(step))
        optimizer.zero_grad()
        task.loss(model(inputs[chosen]), targets[chosen]).backward()
        optimizer.step()
        average.update_parameters(model)
    return average.module


def averaging(**changes):
    return a_task(**({"test": samples(), "metric": error, "ema": 0.6} | changes))


SEEING_ALL = [
    spec
    for spec in SYNCHRONOUS
    if spec not in ("sync:servers=2", "sync:placement=all") and "stage=3" not in spec and "zero=3" not in spec
]


@pytest.mark.parametrize("spec", ["single", *SEEING_ALL])
def test_the_moving_average_is_that_of_torch_and_is_what_is_evaluated(spec):
    run = pl.train(averaging(), spec, simulated(3), steps=STEPS)
    expected = averaged_by_torch(averaging(), STEPS, 0.6)
    for name, tensor in expected.state_dict().items():
        check_close(run.ema_state[name], tensor)
    assert run.metric == pytest.approx(error(expected(samples()[0]), samples()[1]), rel=1e-9)
    assert not torch.equal(run.state["0.weight"], run.ema_state["0.weight"])


@pytest.mark.parametrize("spec", ["single", "all-reduce", "sync", "local-sgd:period=2", "decentralized"])
def test_both_worlds_have_the_same_moving_average(spec):
    here, there = (pl.train(averaging(), spec, make(2), steps=STEPS) for make in WORLDS.values())
    assert torch.equal(here.ema_state["0.weight"], there.ema_state["0.weight"])
    assert [r.metric for r in here.history] == [r.metric for r in there.history]


@pytest.mark.parametrize("spec", ["sync:servers=2", "sync:placement=all"])
def test_a_rank_that_sees_a_part_of_the_parameters_keeps_no_average(spec):
    with refused("ema", 0.6):
        pl.train(averaging(), spec, simulated(2), steps=2)


@pytest.mark.parametrize(
    "spec", [spec for spec in SPECS if spec.partition(":")[0] in LOCAL | {"async", "hogwild"}]
)
def test_every_other_strategy_keeps_an_average_too(spec):
    run = pl.train(averaging(), spec, simulated(2), steps=STEPS)
    assert torch.isfinite(run.ema_state["0.weight"]).all()


# Schedules


def halving(optimizer):
    return LambdaLR(optimizer, lambda number: 0.5**number)


@pytest.mark.parametrize("spec", ["single", "all-reduce", "sync:servers=2"])
def test_a_schedule_by_epoch_is_stepped_when_all_samples_were_seen(spec):
    by_epoch = a_task(schedule=halving, schedule_every="epoch")  # 3 batches an epoch
    by_hand = a_task(schedule=lambda optimizer: LambdaLR(optimizer, lambda number: 0.5 ** (number // 3)))
    run = pl.train(by_epoch, spec, simulated(2), steps=8)
    check_close(run.parameters, pl.train(by_hand, "single", simulated(1), steps=8).parameters)


def on_plateaus(optimizer, threshold=0.05):
    return ReduceLROnPlateau(optimizer, mode="min", factor=0.1, patience=0, threshold=threshold)


def plateau_task(schedule=on_plateaus):
    return a_task(test=samples(), metric=error, schedule=schedule)


def plateaus_of_torch(steps, every, make_schedule=on_plateaus):
    task = plateau_task()
    model = task.build_model(0)
    optimizer = task.build_optimizer(model)
    schedule, rates = make_schedule(optimizer), []
    batches, (inputs, targets) = GlobalBatches(24, 8, 0), samples()
    for step in range(steps):
        chosen = torch.from_numpy(batches.indices(step))
        optimizer.zero_grad()
        task.loss(model(inputs[chosen]), targets[chosen]).backward()
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])
        if (step + 1) % every == 0:
            with torch.no_grad():
                schedule.step(error(model(inputs), targets))
    assert len(set(rates)) > 1  # or else this would test nothing
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


@pytest.mark.parametrize("spec", ["single", *SYNCHRONOUS])
def test_plateaus_lower_the_rate_on_every_rank_at_the_same_update(spec):
    run = pl.train(plateau_task(), spec, simulated(3), steps=12, evaluate_every=2)
    check_close(run.parameters, plateaus_of_torch(12, 2))


@pytest.mark.parametrize(
    "spec",
    ["all-reduce", "all-reduce:algorithm=ring", "sync:servers=2", "local-sgd:period=2", "decentralized"],
)
def test_both_worlds_lower_the_rate_at_the_same_update(spec):
    here, there = (
        pl.train(plateau_task(), spec, make(3), steps=12, evaluate_every=2) for make in WORLDS.values()
    )
    assert torch.equal(here.parameters, there.parameters)


class LateUpdates(STRATEGIES["all-reduce"]):
    """The second worker updates late: the first one has probably evaluated the model after the same update."""

    async def worker(self, ctx):
        model = ctx.model

        async def late(*args, **options):
            await ctx.sleep(0.05)
            await model.apply(*args, **options)

        late_model = Wrapped(model, apply=late) if ctx.rank == 1 else model
        await super().worker(Wrapped(ctx, model=late_model))


def test_a_rank_that_updates_late_gets_the_metric_of_its_update_not_the_next_one():
    slowly = partial(on_plateaus, threshold=0.01)  # the rate falls after some evaluations, not after each
    strategy = LateUpdates(algorithm="ring")
    run = pl.train(plateau_task(slowly), strategy, pl.Local(workers=2), steps=8, evaluate_every=1)
    check_close(run.parameters, plateaus_of_torch(8, 1, slowly))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("spec", ["all-reduce:algorithm=ring", "sync:servers=2"])
def test_a_resumed_run_has_the_metric_of_its_last_evaluation(world, spec, tmp_path):
    for steps in (4, 7, 12):
        run = pl.train(
            plateau_task(),
            spec,
            WORLDS[world](2),
            steps=steps,
            evaluate_every=2,
            checkpoint=tmp_path / "checkpoint",
            resume=steps > 4,
        )
    check_close(run.parameters, plateaus_of_torch(12, 2))


@pytest.mark.parametrize("spec", ["hogwild", "decentralized:mode=async"])
def test_workers_of_their_own_pace_have_no_plateaus(spec):
    with refused("schedule", "ReduceLROnPlateau"):
        pl.train(plateau_task(), spec, simulated(2), steps=4)


def test_optimizers_that_begin_anew_have_no_plateaus():
    with refused("schedule", "ReduceLROnPlateau"):
        pl.train(plateau_task(), "fedavg", simulated(2), steps=4)


# Parts of a batch


@pytest.mark.parametrize(("spec", "workers"), one_in(3, itertools.product(SYNCHRONOUS, [1, 2, 3])))
def test_a_strategy_that_accumulates_gives_the_weights_of_one_that_does_not(spec, workers):
    run = pl.train(a_task(accumulate=3), spec, simulated(workers), steps=STEPS)
    check_close(run.parameters, pl.train(a_task(), "single", simulated(1), steps=STEPS).parameters)


@pytest.mark.parametrize("spec", ["all-reduce:algorithm=ring,bucket_mb=0.0001", "sync", "hogwild"])
def test_processes_accumulate_too(spec):
    run = pl.train(a_task(accumulate=2), spec, pl.Local(workers=1, threads=1), steps=STEPS)
    check_close(run.parameters, pl.train(a_task(), "single", simulated(1), steps=STEPS).parameters)
