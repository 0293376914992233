"""A peer that dies, by a real SIGKILL, does not stop the others: they renormalise their weights and continue."""

import itertools
import os
import signal

import numpy as np
import pytest
import torch
from conformance.cases import in_turn, one_in
from deaths import BATCH, awaiting_loss, deadly, numbered_samples
from refusals import has, raised
from strategies.server_cases import Wrapped
from tasks import a_task
from torch import nn

import paceline as pl
from paceline.errors import PeerLost
from paceline.strategies.decentralized import Decentralized

FATAL_STEP = 7


LARGE = {
    "model": lambda: nn.Sequential(nn.Linear(4, 150_000), nn.Linear(150_000, 2)).double(),
    "optimizer": lambda params: torch.optim.SGD(params, lr=1e-9),
}


def train(spec, deaths, *, workers=5, steps=60, link="shared-memory", **changes):
    task = a_task(
        **{"loss": deadly(deaths, workers), "data": numbered_samples(), "batch_size": BATCH} | changes
    )
    return pl.train(task, spec, pl.Local(workers=workers, link=link, deadline_s=30), steps=steps)


LINKS = ["shared-memory", pl.Link("100Mbps", "1ms")]
TOPOLOGIES = ["ring", "complete", "star", "exponential", "one-peer-exponential"]


# Each topology has both links, and so has each overlap.
@pytest.mark.parametrize(
    ("topology", "overlap", "link"),
    one_in(7, in_turn(itertools.product(TOPOLOGIES, ["yes", "no"]), [*LINKS, *reversed(LINKS)])),
)
def test_the_others_go_on_and_the_record_names_the_rank_once(topology, overlap, link):
    spec = f"decentralized:topology={topology},overlap={overlap},consensus_every=1"
    run = train(spec, {3: FATAL_STEP}, link=link)
    ((rank, step),) = run.lost
    assert rank == 3
    # Its neighbours miss it in the step of its death, or in the next one if its parameters came before it died.
    assert FATAL_STEP <= step <= FATAL_STEP + 3
    assert run.steps == 60
    assert run.as_dict()["lost"] == [(3, step)]
    assert np.isfinite([record["consensus"] for record in run.history]).all()


@pytest.mark.parametrize("topology", one_in(3, zip(["ring", "complete", "star"])))
def test_those_who_are_left_still_come_to_agree(topology):
    # The learning rate is zero from a step well after the death. From then on peers only average.
    def for_a_while(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: float(step < 30))

    spec = f"decentralized:topology={topology},consensus_every=1"
    run = train(spec, {2: FATAL_STEP}, steps=150, schedule=for_a_while)
    measured = [record["consensus"] for record in run.history]
    assert [rank for rank, _ in run.lost] == [2]
    assert measured[30] > 1e-3
    assert measured[-1] < 1e-6 * measured[30]


def test_the_model_is_the_mean_of_those_who_are_left():
    spec = "decentralized:topology=complete,evaluate_peers=yes"
    inputs, targets = numbered_samples()

    def metric(output, target):
        return -float((output - target[:, 1:]).square().mean())

    run = train(spec, {1: FATAL_STEP}, workers=3, test=(inputs, targets), metric=metric)
    assert sorted(run.peer_metrics) == [0, 2]
    assert run.metric == pytest.approx(metric(run.model(inputs).detach(), targets), rel=1e-12)


def test_parameters_that_fill_the_link_do_not_hold_up_those_who_are_left():
    # Eight megabytes do not fit into the ring between two processes, so a message to a dead peer is never written.
    run = train("decentralized", {2: FATAL_STEP}, workers=3, steps=20, **LARGE)
    assert [rank for rank, _ in run.lost] == [2]
    assert run.steps == 20


@pytest.mark.parametrize(
    ("topology", "link"),
    one_in(2, [*in_turn([("ring",), ("star",), ("complete",)], LINKS), ("ring", LINKS[1])]),
)
def test_pairwise_peers_go_on_without_the_dead(topology, link):
    spec = awaiting_loss(f"decentralized:mode=async,topology={topology}", 4, FATAL_STEP)
    run = train(spec, {4: FATAL_STEP}, steps=300, link=link)
    assert [rank for rank, _ in run.lost] == [4]
    assert run.steps == 300
    assert np.isfinite(run.history[-1]["consensus"])


@pytest.mark.parametrize("link", ["shared-memory", pytest.param("tcp", marks=pytest.mark.slow)])
def test_the_updates_of_a_lost_peer_are_in_the_history(link, caplog):
    spec = awaiting_loss("decentralized:mode=async,topology=complete", 4, FATAL_STEP)
    run = train(spec, {4: FATAL_STEP}, steps=300, link=link)
    assert [rank for rank, _ in run.lost] == [4]
    assert [record.step for record in run.history] == list(range(1, 301))
    assert [record.samples for record in run.history] == [n * BATCH // 5 for n in range(1, 301)]
    assert np.isfinite([record.loss for record in run.history]).all(), "it died in a computation"
    assert "was lost before it reported" not in caplog.text


class DiesInAnUpdate(Decentralized):
    """Its second peer dies when it has counted its fourth update, and has not made it."""

    async def worker(self, ctx):
        def count():
            number = ctx.net.count()
            if ctx.rank == 1 and len(ctx.outcome.updates) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return number

        net = Wrapped(ctx.net, count=count)
        await Decentralized.worker(self, Wrapped(ctx, net=net))


@pytest.mark.slow
def test_an_update_in_which_its_peer_dies_is_in_the_history_without_a_loss(caplog):
    run = train(DiesInAnUpdate(mode="async"), {}, workers=3, steps=100)
    assert [record.step for record in run.history] == list(range(1, 101))
    assert sum(np.isnan([record.loss for record in run.history])) == 1
    assert "the losses of 1 of 100 updates are unknown: rank 1 was lost" in caplog.text


def test_the_samples_that_a_lost_peer_has_seen_count():
    run = train("decentralized:topology=complete", {2: FATAL_STEP}, workers=5)
    samples = [BATCH if step < FATAL_STEP else BATCH * 4 // 5 for step in range(60)]
    assert [record.samples for record in run.history] == list(itertools.accumulate(samples))


@pytest.mark.slow
def test_pairwise_parameters_that_fill_the_link_do_not_hold_up_those_who_are_left():
    run = train("decentralized:mode=async", {2: FATAL_STEP}, workers=3, steps=40, **LARGE)
    assert len(run.lost) == 1


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.slow)])
def test_two_deaths_leave_the_rest(mode):
    spec = f"decentralized:mode={mode},topology=complete"
    run = train(spec, {1: FATAL_STEP, 3: FATAL_STEP + 6}, steps=60 if mode == "sync" else 300)
    assert sorted(rank for rank, _ in run.lost) == [1, 3]


class DiesAfterwards(Decentralized):
    """Its second peer dies when it has said all that the others need."""

    async def worker(self, ctx):
        await Decentralized.worker(self, ctx)
        if ctx.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_death_that_nobody_misses_is_in_the_record_too():
    run = train(DiesAfterwards(), {}, workers=3, steps=20)
    ((rank, step),) = run.lost
    assert rank == 1
    assert 0 <= step < 20
    assert run.steps == 20


@pytest.mark.parametrize("mode", [pytest.param("sync", marks=pytest.mark.slow), "async"])
def test_the_death_of_the_first_peer_ends_the_run(mode):
    with raised(PeerLost, rank=0, reason=has("SIGKILL")):
        train(f"decentralized:mode={mode}", {0: FATAL_STEP}, steps=300)
