"""Learning rates of each step, against their formulas."""

import math

import pytest
import torch
from refusals import refused
from tasks import a_task, simulated
from torch import nn

import paceline as pl
from paceline.optim.schedules import in_steps


def rates(schedule, steps, lr=1.0):
    """The rate of each step of a plain loop."""
    parameter = nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    optimizer = torch.optim.SGD([parameter], lr=lr)
    scheduler, found = schedule(optimizer), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_a_warm_up_reaches_the_rate_in_its_last_step():
    assert rates(pl.optim.warmup(4), 6, lr=2.0) == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0, 2.0])


def test_a_warm_up_of_one_step_changes_nothing():
    assert rates(pl.optim.warmup(1, then=pl.optim.polynomial(2, power=1)), 4) == pytest.approx([1, 1, 0.5, 0])


def test_a_warm_up_from_a_fraction_rises_linearly():
    assert rates(pl.optim.warmup(4, start=0.2), 5) == pytest.approx([0.4, 0.6, 0.8, 1.0, 1.0])


def test_a_cosine_falls_to_its_end_and_stays():
    expected = [0.1 + 0.9 * (1 + math.cos(math.pi * step / 4)) / 2 for step in range(4)] + [0.1, 0.1]
    assert rates(pl.optim.cosine(4, end=0.1), 6) == pytest.approx(expected)


def test_a_polynomial_falls_to_zero_and_stays():
    expected = [(1 - step / 5) ** 2 for step in range(5)] + [0, 0]
    assert rates(pl.optim.polynomial(5), 7) == pytest.approx(expected)


@pytest.mark.parametrize("then", [pl.optim.cosine, pl.optim.polynomial])
def test_what_follows_a_warm_up_begins_at_the_full_rate(then):
    expected = [1 / 3, 2 / 3, *rates(then(4), 6)]
    assert rates(pl.optim.warmup(3, then=then(4)), 9)[:2] == pytest.approx(expected[:2])
    assert rates(pl.optim.warmup(3, then=then(4)), 9)[3:] == pytest.approx(expected[2:])


def test_a_scheduler_of_torch_may_follow():
    then = lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2)  # noqa: E731
    assert rates(pl.optim.warmup(2, then=then), 6) == pytest.approx([0.5, 1, 1, 1, 0.1, 0.1])


def test_epochs_become_steps_in_all_parts():
    schedule = in_steps(pl.optim.warmup(epochs=1, then=pl.optim.polynomial(epochs=2.5)), lambda: 4)
    assert (schedule.steps, schedule.then.steps) == (4, 10)
    assert not schedule.counts_epochs


def test_a_run_counts_the_updates_of_an_epoch():
    # 24 samples in batches of 8: three updates an epoch
    schedule = pl.optim.warmup(epochs=2, then=pl.optim.polynomial(epochs=1, power=1))
    run = pl.train(a_task(schedule=schedule, batch_size=8), "all-reduce", simulated(2), steps=9)
    found = [record.extra["learning_rate"] for record in run.history]
    top = found[5]
    expected = [1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1, 1, 2 / 3, 1 / 3]
    assert [rate / top for rate in found] == pytest.approx(expected)


def test_a_schedule_stepped_every_epoch_counts_epochs():
    task = a_task(schedule=pl.optim.warmup(epochs=2), schedule_every="epoch", batch_size=8)
    run = pl.train(task, "all-reduce", simulated(2), steps=9)
    found = [record.extra["learning_rate"] for record in run.history]
    assert [rate / found[-1] for rate in found] == pytest.approx([0.5] * 3 + [1.0] * 6)


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (pl.optim.warmup, "steps"),
        (lambda: pl.optim.warmup(5, epochs=1), "steps"),
        (lambda: pl.optim.warmup(2.5), "steps"),
        (lambda: pl.optim.cosine(0), "steps"),
        (lambda: pl.optim.polynomial(epochs=-1), "epochs"),
        (lambda: pl.optim.polynomial(5, power=0), "power"),
        (lambda: pl.optim.cosine(5, end=2), "end"),
        (lambda: pl.optim.warmup(5, start=-1), "start"),
        (lambda: pl.optim.warmup(5, then=3), "then"),
        (lambda: pl.optim.scaled(0.1, 0), "batch_size"),
        (lambda: pl.optim.scaled(0.1, 64, rule="cubic"), "rule"),
    ],
)
def test_a_wrong_argument_is_refused(make, argument):
    with refused(argument):
        make()


def test_rates_scale_with_the_batch_or_its_root():
    assert pl.optim.scaled(0.1, 1024) == pytest.approx(0.4)
    assert pl.optim.scaled(0.1, 1024, rule="sqrt") == pytest.approx(0.2)
    assert pl.optim.scaled(0.1, 64, base=64) == pytest.approx(0.1)
