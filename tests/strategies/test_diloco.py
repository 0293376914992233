import math

import pytest
import torch
from refusals import has, refused, unknown
from strategies.local_cases import PlainWorkers, labelled
from tasks import WORLDS, simulated

import paceline as pl
from paceline.strategies.diloco import DiLoCo


def adamw(params):
    return torch.optim.AdamW(params, lr=0.01)


def plainly(task, workers, steps, period, outer_lr, outer_momentum):
    """The outer optimizer is torch's own SGD, given the difference as its gradient."""
    plain = PlainWorkers(task, workers)
    outer = torch.nn.Parameter(plain.mean())
    optimizer = torch.optim.SGD([outer], lr=outer_lr, momentum=outer_momentum, nesterov=outer_momentum > 0)
    for step in range(steps):
        plain.step(step)
        if (step + 1) % period == 0:
            outer.grad = outer.detach() - plain.mean()
            optimizer.step()
            plain.put(outer.detach())
    return plain.mean()


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("outer_lr", "outer_momentum"), [(0.7, 0.9), (1.2, 0.0)])
@pytest.mark.parametrize(("workers", "period", "steps"), [(2, 3, 12), (3, 2, 7)])
def test_its_weights_are_those_of_a_plain_loop(workers, period, steps, outer_lr, outer_momentum, world):
    task = labelled(optimizer=adamw, batch_size=11)
    spec = f"diloco:period={period},outer_lr={outer_lr},outer_momentum={outer_momentum}"
    run = pl.train(task, spec, WORLDS[world](workers), steps=steps)
    expected = plainly(task, workers, steps, period, outer_lr, outer_momentum)
    torch.testing.assert_close(run.parameters, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("period", [1, 3])
def test_without_an_outer_optimizer_it_is_local_sgd(period):
    task = labelled(optimizer=adamw)
    plain = pl.train(task, f"local-sgd:period={period}", simulated(3), steps=9)
    outer = pl.train(task, f"diloco:period={period},outer_lr=1,outer_momentum=0", simulated(3), steps=9)
    torch.testing.assert_close(outer.parameters, plain.parameters, rtol=0, atol=1e-12)
    assert outer.bytes_sent == plain.bytes_sent


def test_the_outer_momentum_makes_a_difference():
    task = labelled(optimizer=adamw)
    fast, slow = (
        pl.train(task, f"diloco:period=2,outer_momentum={momentum}", simulated(2), steps=8)
        for momentum in (0.9, 0.0)
    )
    assert not torch.allclose(fast.parameters, slow.parameters, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"period": 0}, refused("period", 0, bound=has(1))),
        ({"outer_lr": 0.0}, refused("outer_lr", 0.0)),
        ({"outer_lr": math.nan}, refused("outer_lr", has("nan"), bound=has(0))),
        ({"outer_momentum": 1.0}, refused("outer_momentum", 1.0)),
        ({"outer_momentum": -0.1}, refused("outer_momentum", -0.1)),
        ({"algorithm": "rong"}, unknown("algorithm", "rong", nearest="ring")),
    ],
)
def test_what_cannot_be_right_is_refused(changes, refusal):
    with refusal:
        DiLoCo(**changes)
