"""AD-PSGD: pairwise averaging preserves the sum, blocks no peer and ends correctly, on any graph."""

import itertools

import numpy as np
import pytest
import torch
from conformance.cases import one_in
from refusals import has, refused
from tasks import WORLDS, a_task, numbers, samples, simulated
from torch import nn

import paceline as pl
from paceline.strategies.decentralized import Decentralized
from paceline.trace import Kind

GRAPHS = {"ring": (2, 3, 4, 7), "star": (5,), "path": (6,), "complete": (5,), "random-regular:degree=4": (9,)}
CASES = [(topology, peers) for topology, sizes in GRAPHS.items() for peers in sizes]
CLUSTERS = {
    "in step": {},
    "uneven": {"compute": pl.times.Exponential(0.01), "link": pl.Link("1Mbps", "3ms")},
    "slow link": {"compute": pl.times.Constant(0.001), "link": pl.Link("1Mbps", "20ms")},
}
IN_CLUSTERS = [(*case, cluster) for case in CASES for cluster in CLUSTERS]
SPEC = "decentralized:mode=async,consensus_every=1"


def at_first(updates):
    """A schedule by which the first updates count and no others do: after them peers do nothing but average."""
    return lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: float(step < updates))


def averaging(peers):
    return a_task(schedule=at_first(3 * peers), data=samples(64), batch_size=64)


def last_consensus(run):
    return next(r["consensus"] for r in reversed(run.history) if "consensus" in r.extra)


class Riser(nn.Module):
    """Three parameters. Each update adds one half to each of them, for any values and any batch."""

    def __init__(self):
        super().__init__()
        self.heights = nn.Parameter(torch.zeros(3, dtype=torch.float64))

    def forward(self, inputs):
        return self.heights.expand(len(inputs), 3)


def fall(outputs, _targets):
    return -outputs.sum(dim=1).mean()


def half(params):
    return torch.optim.SGD(params, lr=0.5)


class Scattered(Decentralized):
    """Peers begin with their ranks as parameters."""

    async def worker(self, ctx):
        ctx.model.parameters.fill_(float(ctx.rank))
        await Decentralized.worker(self, ctx)


def assert_sum_is_kept(topology, cluster, steps, seed=0):
    task = a_task(model=Riser, loss=fall, optimizer=half, batch_size=24)
    run = pl.train(task, Scattered(topology=topology, mode="async"), cluster, steps=steps, seed=seed)
    height = (cluster.workers - 1) / 2 + steps / 2 / cluster.workers
    torch.testing.assert_close(
        run.parameters, torch.full((3,), height, dtype=torch.float64), rtol=0, atol=1e-12
    )
    return run


# Averaging


@pytest.mark.parametrize(("topology", "peers", "cluster"), one_in(4, IN_CLUSTERS))
def test_the_sum_is_kept_whatever_happens_meanwhile(topology, peers, cluster):
    for seed, steps in itertools.product(range(3), (1, peers, 5 * peers + 3)):
        assert_sum_is_kept(topology, simulated(peers, **CLUSTERS[cluster]), steps, seed)


@pytest.mark.parametrize(
    ("topology", "peers"), one_in(2, [("ring", 3), ("ring", 5), ("star", 4), ("complete", 4)])
)
def test_the_sum_is_kept_in_processes(topology, peers):
    assert_sum_is_kept(topology, pl.Local(workers=peers), steps=40 * peers)
    assert_sum_is_kept(topology, pl.Local(workers=peers, link=pl.Link("10Mbps", "2ms")), steps=3 * peers)


@pytest.mark.parametrize(("topology", "peers", "cluster"), one_in(7, IN_CLUSTERS))
def test_peers_come_to_agree_once_they_learn_nothing_more(topology, peers, cluster):
    run = pl.train(
        averaging(peers),
        f"{SPEC},topology={topology}",
        simulated(peers, **CLUSTERS[cluster]),
        steps=(100 if topology == "path" else 50) * peers,
    )
    measured = [r["consensus"] for r in run.history if "consensus" in r.extra]
    assert measured[-1] < 1e-3 * max(measured)


@pytest.mark.parametrize("seed", one_in(3, zip(range(6))))
def test_peers_on_an_odd_ring_come_to_agree(seed):
    cluster = simulated(5, compute=pl.times.Pareto(0.001, 1.5), link=pl.Link("1Mbps", "1ms"), slow={2: 5.0})
    run = pl.train(averaging(5), SPEC, cluster, steps=400, seed=seed)
    first = next(r["consensus"] for r in run.history if "consensus" in r.extra and r.step > 15)
    assert last_consensus(run) < 1e-6 * first
    assert run.steps == 400


def test_two_peers_that_keep_pace_average_and_do_not_swap():
    # Both peers make their offers at the same times, so that all offers cross.
    run = pl.train(averaging(2), SPEC, simulated(2), steps=60)
    assert last_consensus(run) < 1e-15
    # Besides farewells each sends offers alone: an offer that crosses is the answer.
    offers = [len(spans.of(Kind.COMPUTE)) for spans in run.trace.spans]
    assert run.messages_sent == [count + 1 for count in offers]


# Updates


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("peers", "steps"), [(2, 1), (3, 2), (4, 7), (4, 50)])
def test_makes_exactly_the_updates_it_was_asked_for_and_knows_the_staleness_of_each(peers, steps, world):
    run = pl.train(a_task(), "decentralized:mode=async", WORLDS[world](peers), steps=steps)
    assert [record.step for record in run.history] == list(range(1, steps + 1))
    assert sum(run.staleness.values()) == steps
    assert sum(len(spans.of(Kind.UPDATE)) for spans in run.trace.spans) == steps


def test_equal_peers_see_the_updates_of_all_others_come_between():
    run = pl.train(a_task(), "decentralized:mode=async", simulated(4), steps=40)
    assert run.staleness == {0: 1, 1: 1, 2: 1, 3: 37}


@pytest.mark.parametrize("topology", ["ring", "star"])
def test_a_slow_peer_slows_nobody_else(topology):
    cluster = simulated(5, compute=pl.times.Constant(0.01), link=pl.Link.ideal(), slow={4: 50.0})
    run = pl.train(a_task(), f"decentralized:mode=async,topology={topology}", cluster, steps=400)
    updates = [len(spans.of(Kind.UPDATE)) for spans in run.trace.spans]
    assert updates == pytest.approx([100, 100, 100, 100, 2], abs=2)


def test_nobody_waits_for_an_exchange_that_is_quicker_than_a_gradient():
    cluster = simulated(4, link=pl.Link("100Mbps", "2ms"))
    run = pl.train(a_task(), "decentralized:mode=async", cluster, steps=80)
    assert run.seconds == pytest.approx(20 * 0.01, rel=1e-9)
    apart = pl.train(a_task(), "decentralized:mode=async,overlap=no", cluster, steps=80)
    assert apart.seconds > 1.3 * run.seconds


@pytest.mark.slow
def test_finds_the_optimum_of_a_convex_task():
    x, w = numbers(64, 4), numbers(4, 1, seed=1)
    task = a_task(
        model=lambda: nn.Linear(4, 1, bias=False).double(), data=(x, x @ w), batch_size=16, optimizer=slow_sgd
    )
    cluster = simulated(7, compute=pl.times.Exponential(0.01))
    run = pl.train(task, "decentralized:mode=async", cluster, steps=7 * 400)
    torch.testing.assert_close(run.parameters, w.flatten(), rtol=0, atol=1e-6)


def slow_sgd(params):
    return torch.optim.SGD(params, lr=0.05)


def test_the_schedule_goes_by_the_updates_of_all():
    task = a_task(schedule=at_first(20))
    short, long = (
        pl.train(task, "decentralized:mode=async,topology=complete", simulated(4), steps=steps)
        for steps in (28, 60)
    )
    torch.testing.assert_close(short.parameters, long.parameters, rtol=0, atol=1e-14)


def test_a_slice_without_samples_makes_no_update():
    run = pl.train(a_task(data=samples(25)), "decentralized:mode=async", simulated(4), steps=30)
    counts = np.diff([0, *(record.samples for record in run.history)])
    assert run.steps == 30
    assert counts.min() >= 1


@pytest.mark.parametrize("world", WORLDS)
def test_more_peers_than_samples_in_a_batch_are_refused(world):
    with refused("batch_size", 2, bound=has(3)):
        pl.train(a_task(batch_size=2), "decentralized:mode=async", WORLDS[world](3), steps=3)


# Records


def negative_loss(output, target):
    return -float((output - target).square().mean())


@pytest.mark.parametrize("world", WORLDS)
def test_seconds_and_samples_and_bytes_only_grow(world):
    run = pl.train(a_task(batch_size=7), "decentralized:mode=async", WORLDS[world](3), steps=25)
    for name in ("seconds", "samples", "bytes"):
        assert all(a <= b for a, b in itertools.pairwise(r[name] for r in run.history))


@pytest.mark.parametrize("world", WORLDS)
def test_consensus_is_noted_about_as_often_as_asked_and_at_the_end(world):
    run = pl.train(a_task(), "decentralized:mode=async,consensus_every=10", WORLDS[world](3), steps=60)
    noted = [r.step for r in run.history if "consensus" in r.extra]
    assert noted[-1] == 60
    assert 2 <= len(noted) <= 7
    if world == "simulated":
        assert [step // 10 for step in noted] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("world", WORLDS)
def test_stops_soon_after_the_target(world):
    task = a_task(test=samples(), metric=negative_loss, target=-0.9)
    run = pl.train(
        task,
        "decentralized:mode=async",
        WORLDS[world](3),
        steps=50_000,
        evaluate_every=10,
        stop_at_target=True,
    )
    assert run.reached_target
    assert run.steps < 50_000
    assert sum(run.staleness.values()) == run.steps == len(run.history)


def test_without_mathematics_it_takes_the_same_course():
    real, none = (
        pl.train(
            a_task(),
            "decentralized:mode=async,topology=random-regular:degree=3",
            simulated(8, math=math, compute=pl.times.Exponential(0.01)),
            steps=60,
        )
        for math in ("real", "none")
    )
    assert real.seconds == none.seconds
    assert real.staleness == none.staleness
    assert real.bytes_sent == none.bytes_sent
