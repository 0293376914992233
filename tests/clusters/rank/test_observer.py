"""Observation of workers with their own parameters: their mean, and their distance from it, excluded from the
clock."""

import math
import os
import signal
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from tasks import WORLDS, a_task, samples, simulated

import paceline as pl
from paceline.trace import Kind


def metric(output, target):
    return -float((output - target).square().mean())


@dataclass(frozen=True)
class Stepping:
    """After each step a worker's parameters are all rank x step."""

    every: int = 0

    def roles(self, workers):
        return ("worker",) * workers

    async def worker(self, ctx):
        async for batch in ctx.batches():
            await ctx.model.compute(batch)
            ctx.model.parameters.fill_(float(ctx.rank * (batch.step + 1)))
            is_due = self.every > 0 and (batch.step + 1) % self.every == 0
            await ctx.log.observe(batch.step, force=is_due, own_metric=True)


def distance(workers, step, parameters=37):
    """The root of the mean squared distance of vectors of such numbers."""
    return np.std([rank * step for rank in range(workers)]) * math.sqrt(parameters)


@pytest.mark.parametrize("world", WORLDS)
def test_the_model_is_the_mean_of_all_workers(world):
    run = pl.train(a_task(), Stepping(), WORLDS[world](4), steps=3)
    assert torch.equal(run.parameters, torch.full((37,), 1.5 * 3, dtype=torch.float64))
    assert torch.equal(torch.cat([p.detach().flatten() for p in run.model.parameters()]), run.parameters)


@pytest.mark.parametrize("world", WORLDS)
def test_steps_that_are_looked_at_have_the_distance_from_the_mean(world):
    run = pl.train(a_task(), Stepping(every=2), WORLDS[world](4), steps=5)
    assert {r.step: r["consensus"] for r in run.history if "consensus" in r.extra} == {
        step: pytest.approx(distance(4, step)) for step in (2, 4, 5)
    }


@pytest.mark.parametrize("world", WORLDS)
def test_the_metric_is_that_of_the_mean_and_the_workers_own_are_apart(world):
    task = a_task(test=samples(12), metric=metric)
    run = pl.train(task, Stepping(), WORLDS[world](3), steps=4, evaluate_every=2)
    model, (inputs, targets) = task.build_model(0), samples(12)

    def metric_of(value):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(value)
            return pytest.approx(metric(model(inputs), targets), rel=1e-12)

    assert {r.step: r.metric for r in run.history if r.metric is not None} == {
        2: metric_of(1 * 2.0),
        4: metric_of(1 * 4.0),
    }
    assert run.peer_metrics == {rank: metric_of(rank * 4.0) for rank in range(3)}


@pytest.mark.parametrize("world", WORLDS)
def test_the_step_that_reaches_the_target_is_the_last(world):
    # The mean grows by one a step, and the metric is that growth.
    task = a_task(
        model=lambda: torch.nn.Linear(4, 2).double(),
        test=(torch.zeros(1, 4, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64)),
        metric=lambda output, _target: float(output[0, 0]),
        target=5.0,
    )
    run = pl.train(task, Stepping(), WORLDS[world](3), steps=50, evaluate_every=1, stop_at_target=True)
    assert [r.metric for r in run.history] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_looking_takes_no_virtual_time_and_sends_nothing():
    cluster = simulated(3, link=pl.Link("1Mbps", "1s"))
    run = pl.train(a_task(), Stepping(every=1), cluster, steps=4)
    assert run.seconds == pytest.approx(4 * 0.01)
    assert run.bytes_sent == run.messages_sent == [0, 0, 0]


def test_looking_takes_no_bytes_of_an_emulated_link():
    run = pl.train(a_task(), Stepping(every=1), pl.Local(workers=3, link=pl.Link("1Mbps", "1s")), steps=4)
    assert run.bytes_sent == [0, 0, 0]
    assert run.history[-1]["consensus"] == pytest.approx(distance(3, 4))


def test_only_steps_that_are_looked_at_wait_for_the_slowest():
    # The second worker takes a second per step. The first one completes its steps earlier, except for observed steps.
    cluster = simulated(2, slow={1: 100.0})
    run = pl.train(a_task(), Stepping(every=3), cluster, steps=6)
    assert [r.seconds for r in run.history] == pytest.approx([0.01, 0.02, 3.0, 3.01, 3.02, 6.0])


def test_without_mathematics_there_is_nothing_to_see():
    run = pl.train(a_task(), Shapes(), simulated(3, math="none"), steps=2)
    assert math.isnan(run.history[-1]["consensus"])
    assert not run.state


class Shapes(Stepping):
    async def worker(self, ctx):
        async for batch in ctx.batches():
            await ctx.model.compute(batch)
            await ctx.log.observe(batch.step)


# Independent workers


@dataclass(frozen=True)
class OwnDuration:
    """Workers count updates and show, instead of their parameters, the number of the last one."""

    def roles(self, workers):
        return ("worker",) * workers

    async def worker(self, ctx):
        numbers = []
        async for batch in ctx.batches(endless=True):
            loss = await ctx.model.compute(batch)
            number = ctx.net.count()
            if number > ctx.log.steps:
                break
            numbers.append(number)
            await ctx.log.observe(parameters=torch.full_like(ctx.model.parameters, float(number)))
            ctx.log.record(number, loss=loss, samples=batch.count, force=number % 5 == 0)
        return numbers


@pytest.mark.parametrize("world", WORLDS)
def test_every_update_has_a_number_of_its_own(world):
    run = pl.train(a_task(), OwnDuration(), WORLDS[world](3), steps=400)
    assert [r.step for r in run.history] == list(range(1, 401))


def test_processes_that_race_for_numbers_get_each_once():
    async def count(ctx):
        return [ctx.net.count() for _ in range(3000)]

    counted = pl.run_program(count, pl.Local(workers=3)).results
    assert sorted(number for each in counted for number in each) == list(range(1, 9001))


def test_the_mean_is_of_what_was_shown_last():
    run = pl.train(a_task(), OwnDuration(), simulated(3), steps=9)
    assert torch.equal(run.parameters, torch.full((37,), 8.0, dtype=torch.float64))  # of 7, 8 and 9


def test_a_worker_that_has_shown_nothing_yet_does_not_count():
    run = pl.train(a_task(), OwnDuration(), simulated(3, slow={2: 1000.0}), steps=8)
    assert torch.equal(run.parameters, torch.full((37,), 7.5, dtype=torch.float64))  # of 7 and 8


# A worker that dies


@dataclass(frozen=True)
class Mourning(Stepping):
    """The last worker dies in the third step, before it has published parameters of that step."""

    expendable: ClassVar[tuple[str, ...]] = ("worker",)

    async def worker(self, ctx):
        async for batch in ctx.batches():
            await ctx.model.compute(batch)
            if ctx.rank == len(ctx.workers) - 1 and batch.step == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            ctx.model.parameters.fill_(float(ctx.rank * (batch.step + 1)))
            await ctx.log.observe(batch.step, force=True)


@pytest.mark.parametrize("link", ["shared-memory", pl.Link("100Mbps", "1ms")], ids=["memory", "emulated"])
def test_nobody_waits_for_the_dead_and_the_mean_is_of_the_living(link):
    run = pl.train(a_task(), Mourning(), pl.Local(workers=4, link=link), steps=5)
    expected = [distance(4, 1), distance(4, 2), *(distance(3, step) for step in (3, 4, 5))]
    assert [r["consensus"] for r in run.history] == pytest.approx(expected)
    assert torch.equal(run.parameters, torch.full((37,), 1.0 * 5, dtype=torch.float64))
    assert [rank for rank, _ in run.lost] == [3]


def test_the_wait_for_an_evaluation_is_in_the_trace_as_evaluation():
    run = pl.train(
        a_task(test=samples(12), metric=metric), Stepping(), pl.Local(workers=2), steps=6, evaluate_every=3
    )
    waited = run.trace.spans[1].of(Kind.EVALUATE)
    assert list(waited["step"]) == [2, 2, 5, 5, 5], (
        "showing and waiting after two steps, and its own at the end"
    )
