"""Strategies that survive the death of a real process survive the death of a simulated rank in the same way."""

import itertools

import numpy as np
import pytest
import torch
from conformance.cases import in_turn
from deaths import BATCH, deadly, deadly_once, numbered_samples
from refusals import has, raised
from tasks import a_task, simulated
from torch import nn

import paceline as pl
from paceline.errors import PeerLost
from paceline.faults import Kill
from paceline.strategies import STRATEGIES
from paceline.strategies.decentralized import Decentralized

FATAL_STEP = 7

SURVIVING_SERVERS = [
    "async",
    "async:servers=2",
    "async:placement=worker",
    "k-async:k=2",
    "k-batch-async:k=2",
    "k-sync:k=2",
    "k-batch-sync:k=2",
    "ssp:staleness=1",
    "fedavg:batch=4",
    "fedavgm:batch=4,fraction=0.6",
    "fedprox:batch=4",
    "fedadam:batch=4",
]

NEEDING_ALL = ["sync", "central-storage", "k-sync:k=3", "all-reduce", "map-reduce", "local-sgd", "hogwild"]


def train(spec, *faults, workers=3, steps=60, task=None, **changes):
    return pl.train(task or a_task(), spec, simulated(workers, faults=faults, **changes), steps=steps)


# During a gradient, each of which takes 10 ms.
@pytest.mark.parametrize(
    ("spec", "fault"),
    list(itertools.product(SURVIVING_SERVERS, [Kill(1, step=FATAL_STEP), Kill(1, at="75ms")])),
    ids=str,
)
def test_a_server_goes_on_without_a_worker_and_its_record_names_rank_and_step(spec, fault):
    run = train(spec, fault)
    ((rank, step),) = run.lost
    assert rank == 1
    assert 0 <= step < 60
    assert run.steps == 60
    assert np.isfinite([record.loss for record in run.history]).all()


def test_every_strategy_with_expendable_ranks_is_among_those_that_are_tried_here():
    tried = {spec.partition(":")[0] for spec in (*SURVIVING_SERVERS, *NEEDING_ALL)} | {"decentralized"}
    assert {name for name, kind in STRATEGIES.items() if kind.expendable} <= tried


@pytest.mark.parametrize("spec", NEEDING_ALL)
def test_the_run_ends_where_too_few_are_left(spec):
    with raised(PeerLost, rank=1, reason=has("pl.faults", FATAL_STEP)):
        train(spec, Kill(1, step=FATAL_STEP))


@pytest.mark.parametrize("spec", ["async", "fedavg"])
def test_the_last_workers_death_ends_the_run(spec):
    with raised(PeerLost, rank=0):
        train(spec, Kill(0, step=FATAL_STEP), workers=1)
    with raised(PeerLost, rank=2):
        train(spec, *(Kill(rank, step=FATAL_STEP + rank) for rank in range(3)))


def test_the_death_of_a_server_ends_the_run():
    with raised(PeerLost, rank=3):
        train("async", Kill(3, at="75ms"))


def test_of_several_deaths_each_is_in_the_record():
    run = train("async", Kill(2, step=3), Kill(0, at="75ms"))
    assert [rank for rank, _ in run.lost] == [2, 0]
    assert run.steps == 60


TOPOLOGIES = ["ring", "complete", "star", "exponential", "one-peer-exponential"]


@pytest.mark.parametrize(
    ("topology", "overlap", "fault"),
    in_turn(itertools.product(TOPOLOGIES, ["yes", "no"]), [Kill(3, step=FATAL_STEP), Kill(3, at="75ms")]),
    ids=str,
)
def test_peers_go_on_and_the_record_names_the_lost_one_once(topology, overlap, fault):
    spec = f"decentralized:topology={topology},overlap={overlap},consensus_every=1"
    run = train(spec, fault, workers=5)
    ((rank, step),) = run.lost
    assert rank == 3
    assert FATAL_STEP <= step <= FATAL_STEP + 3
    assert run.steps == 60
    assert np.isfinite([record["consensus"] for record in run.history]).all()


def test_a_peer_goes_on_alone():
    run = train("decentralized:mode=async", Kill(1, step=FATAL_STEP), workers=2)
    assert ([rank for rank, _ in run.lost], run.steps) == ([1], 60)


@pytest.mark.parametrize("topology", ["ring", "complete", "star"])
def test_pairwise_peers_go_on_without_the_dead(topology):
    run = train(
        f"decentralized:mode=async,topology={topology}", Kill(4, step=FATAL_STEP), workers=5, steps=300
    )
    assert [rank for rank, _ in run.lost] == [4]
    assert [record.step for record in run.history] == list(range(1, 301))
    assert np.isfinite([record.loss for record in run.history]).all()


def test_the_last_updates_count_though_the_peer_that_made_them_is_lost():
    # The second peer dies after the last updates, while it waits for the slow peers to end.
    spec = "decentralized:mode=async,topology=complete"
    run = train(spec, Kill(1, at="230ms"), steps=20, slow={0: 8.0, 2: 8.0})
    assert [rank for rank, _ in run.lost] == [1]
    assert [record.step for record in run.history] == list(range(1, 21))
    assert np.isfinite([record.loss for record in run.history]).all()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_two_deaths_leave_the_other_peers(mode):
    faults = (Kill(1, step=FATAL_STEP), Kill(3, step=FATAL_STEP + 6))
    run = train(f"decentralized:mode={mode},topology=complete", *faults, workers=5, steps=200)
    assert [rank for rank, _ in run.lost] == [1, 3]
    assert run.steps == 200


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_death_of_the_first_peer_ends_the_run(mode):
    with raised(PeerLost, rank=0):
        train(f"decentralized:mode={mode}", Kill(0, step=FATAL_STEP), workers=5)


class LingersOn(Decentralized):
    """Its second peer has said all that the others need, and does not end."""

    async def worker(self, ctx):
        await Decentralized.worker(self, ctx)
        if ctx.rank == 1:
            await ctx.sleep(1000)


def test_a_death_that_nobody_misses_is_in_the_record_too():
    run = train(LingersOn(), Kill(1, at=500), steps=20)
    ((rank, step),) = run.lost
    assert (rank, run.steps) == (1, 20)
    assert 0 <= step < 20


def test_without_mathematics_the_run_survives_too():
    run = train("k-sync:k=2", Kill(1, step=FATAL_STEP), math="none")
    assert [rank for rank, _ in run.lost] == [1]
    assert run.steps == 60


# The same weights as with a real death


def numbered_task(loss):
    return a_task(loss=loss, data=numbered_samples(), batch_size=BATCH)


def plain_loss(output, target):
    return nn.functional.mse_loss(output, target[:, 1:])


@pytest.mark.parametrize(
    "spec",
    [
        "decentralized:topology=ring,overlap=no",
        "decentralized:topology=complete,order=adapt-then-combine",
    ],
)
def test_peers_learn_what_they_learn_after_a_real_death(spec):
    deaths = {3: FATAL_STEP, 1: FATAL_STEP + 4}
    local = pl.Local(workers=5, threads=1, deadline_s=60)
    real = pl.train(numbered_task(deadly(deaths, 5)), spec, local, steps=30)
    faults = [Kill(rank, step=step) for rank, step in deaths.items()]
    virtual = train(spec, *faults, workers=5, steps=30, task=numbered_task(plain_loss))
    assert virtual.lost == real.lost == [(3, FATAL_STEP), (1, FATAL_STEP + 4)]
    assert [record.samples for record in virtual.history] == [record.samples for record in real.history]
    losses = [[record.loss for record in run.history] for run in (virtual, real)]
    np.testing.assert_allclose(*losses, rtol=1e-12)
    torch.testing.assert_close(virtual.parameters, real.parameters, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("spec", ["fedavg:batch=4", "fedavgm:batch=4,fraction=0.6"])
def test_a_federation_learns_what_it_learns_after_a_real_death(spec, tmp_path):
    local = pl.Local(workers=3, threads=1, deadline_s=60)
    real = pl.train(a_task(loss=deadly_once(tmp_path / "dead")), spec, local, steps=20)
    ((rank, step),) = real.lost
    virtual = train(spec, Kill(rank, step=step), steps=20)
    assert virtual.lost == [(rank, step)]
    assert [record["clients"] for record in virtual.history] == [record["clients"] for record in real.history]
    torch.testing.assert_close(virtual.parameters, real.parameters, rtol=1e-12, atol=1e-12)
