import pytest
import torch
from refusals import has, refused, unknown
from strategies.local_cases import PlainWorkers, labelled
from tasks import WORLDS, a_task, simulated
from torch import nn

import paceline as pl
from paceline.strategies.local_sgd import LocalSGD

OPTIMIZERS = {
    "momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda params: torch.optim.AdamW(params, lr=0.01),
}


def plainly(task, workers, steps, period, momentum=False):
    plain = PlainWorkers(task, workers)
    for step in range(steps):
        plain.step(step)
        if (step + 1) % period == 0:
            plain.put(plain.mean())
            if momentum:
                plain.average_moments()
    return plain.mean()


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("averages", ["parameters", "parameters+momentum"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("workers", "period", "steps"), [(2, 3, 9), (3, 2, 7)])
def test_its_weights_are_those_of_a_plain_loop(workers, period, steps, optimizer, averages, world):
    task = labelled(optimizer=OPTIMIZERS[optimizer], batch_size=11)
    spec = f"local-sgd:period={period},averages={averages}"
    run = pl.train(task, spec, WORLDS[world](workers), steps=steps)
    expected = plainly(task, workers, steps, period, momentum="momentum" in averages)
    torch.testing.assert_close(run.parameters, expected, rtol=0, atol=1e-12)


def test_averaged_momentum_makes_a_difference():
    task = labelled(optimizer=OPTIMIZERS["momentum"])
    with_it, without = (plainly(task, 3, 8, 2, momentum=flag) for flag in (True, False))
    assert not torch.allclose(with_it, without, atol=1e-6)


@pytest.mark.parametrize("world", WORLDS)
def test_workers_go_apart_and_agree_again_after_every_period(world):
    run = pl.train(labelled(), "local-sgd:period=4", WORLDS[world](3), steps=12, evaluate_every=1)
    consensus = [record["consensus"] for record in run.history]
    assert [value < 1e-15 for value in consensus] == [False, False, False, True] * 3


@pytest.mark.parametrize("world", WORLDS)
def test_post_local_workers_agree_until_they_go_their_own_ways(world):
    spec = "local-sgd:period=4,post_local=3"
    run = pl.train(labelled(), spec, WORLDS[world](3), steps=11, evaluate_every=1)
    agreed = [record["consensus"] < 1e-15 for record in run.history]
    assert agreed == [True] * 3 + [False, False, False, True] * 2


def test_post_local_begins_with_the_steps_of_single():
    task = labelled(optimizer=OPTIMIZERS["adam"])
    run = pl.train(task, "local-sgd:post_local=5", simulated(3), steps=5)
    single = pl.train(task, "single", simulated(1), steps=5)
    torch.testing.assert_close(run.parameters, single.parameters, rtol=0, atol=1e-12)


@pytest.mark.parametrize("math", ["real", "none"])
@pytest.mark.parametrize(
    ("averages", "optimizer", "tensors"),
    [
        ("parameters", "momentum", 1),
        ("parameters+momentum", "momentum", 2),
        ("parameters+momentum", "adam", 3),
    ],
)
def test_bytes_are_those_of_a_ring_for_each_average(averages, optimizer, tensors, math):
    task = labelled(optimizer=OPTIMIZERS[optimizer])
    run = pl.train(task, f"local-sgd:period=3,averages={averages}", simulated(2, math=math), steps=10)
    parameters = 4 * 5 + 5 + 5 * 3 + 3
    once = parameters * 8  # 2 n (p - 1)/p of each worker
    averages_made = 10 // 3
    assert run.bytes_sent == pytest.approx(
        [once * tensors * averages_made] * 2, abs=8 * tensors * averages_made
    )


@pytest.mark.parametrize("period", [1, 2, 4, 16])
@pytest.mark.parametrize("bandwidth", ["100Mbps", "10Gbps"])
def test_the_speed_up_over_all_reduce_is_the_closed_form(period, bandwidth):
    """(1 + a)/(1 + a/H) with a the time of an average by that of a gradient, where these are constant."""
    workers, compute_s, latency_s = 8, 0.01, 1e-3
    task = a_task(model=lambda: nn.Linear(4, 50_000), data=(torch.zeros(64, 4), torch.zeros(64, 1)))
    link = pl.Link(bandwidth, "1ms")
    cluster = simulated(workers, compute=pl.times.Constant(compute_s), link=link, math="none")
    ring_s = (
        2 * (workers - 1) * latency_s + 2 * (5 * 50_000 * 4) * (workers - 1) / workers * link.seconds_per_byte
    )
    a = ring_s / compute_s
    every_step = pl.train(task, "all-reduce:algorithm=ring", cluster, steps=32)
    rarely = pl.train(task, f"local-sgd:period={period},algorithm=ring", cluster, steps=32)
    assert every_step.seconds / rarely.seconds == pytest.approx((1 + a) / (1 + a / period), rel=0.02)


def test_it_stops_for_everybody_in_the_step_that_reaches_the_target():
    task = labelled(target=0.6)
    runs = [
        pl.train(task, "local-sgd:period=3", world(3), steps=60, evaluate_every=2, stop_at_target=True)
        for world in WORLDS.values()
    ]
    assert runs[0].reached_target
    assert runs[0].steps < 60
    assert runs[0].history[-1].metric >= 0.6
    assert runs[0].steps == runs[1].steps


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"period": 0}, refused("period", 0, bound=has(1))),
        ({"period": 1.5}, refused("period")),
        ({"period": True}, refused("period")),
        ({"post_local": -1}, refused("post_local", -1, bound=has(0))),
    ],
)
def test_what_cannot_be_right_is_refused(changes, refusal):
    with refusal:
        LocalSGD(**changes)


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"averages": "momentum"}, unknown("averages", "momentum")),
        ({"algorithm": "rong"}, unknown("algorithm", "rong", nearest="ring")),
    ],
)
def test_an_unknown_name_is_answered_with_those_that_are(changes, refusal):
    with refusal:
        LocalSGD(**changes)
