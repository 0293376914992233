"""Ranks that a signal stops for longer than the deadline, in every strategy that survives lost ranks. Nothing hangs.

A stopped worker is left behind, or the run ends with an error that names it. A stopped reporter always ends the run.
"""

import itertools
import os
import signal
import threading
import time

import numpy as np
import pytest
from conformance.cases import one_in
from deaths import struck, struck_at_start
from processes import _field, workers
from refusals import has, raised
from strategies.test_simulated_losses import SURVIVING_SERVERS
from tasks import a_task, samples

import paceline as pl
from paceline.errors import DeadlineError, PeerLost
from paceline.strategies import STRATEGIES

DEADLINE_S = 2.0
LINKS = ["shared-memory", "tcp"]
STEP, STEPS = 3, 40


def train(strategy, workers, link):
    cluster = pl.Local(workers=workers, link=link, deadline_s=DEADLINE_S)
    return pl.train(a_task(test=samples(), metric="mse"), strategy, cluster, steps=STEPS)


def assert_complete_without(run, rank):
    assert [lost for lost, _ in run.lost] == [rank]
    assert [record.step for record in run.history] == list(range(1, STEPS + 1))
    assert np.isfinite(run.metric)


def assert_names(error, rank):
    """Either kind of error that a lost or stopped rank may end a run with."""
    named = error.rank if isinstance(error, PeerLost) else error.culprit
    assert named == rank, error


# The reporter of a decentralized run is its first peer


@pytest.mark.parametrize(("link", "count"), list(itertools.product(LINKS, [2, 3])))
def test_a_first_peer_that_stops_ends_an_asynchronous_decentralized_run_with_its_name(link, count, tmp_path):
    with raised(DeadlineError, culprit=0, view=has("rank 0", "stopped")) as caught:
        train(struck("decentralized:mode=async", 0, STEP, signal.SIGSTOP, tmp_path / "struck"), count, link)
    assert caught.value.culprit == 0


@pytest.mark.parametrize(("link", "count"), one_in(2, itertools.product(LINKS, [2, 3])))
def test_a_first_peer_that_is_killed_ends_an_asynchronous_decentralized_run_with_its_name(
    link, count, tmp_path
):
    with raised(PeerLost, rank=0, reason=has("SIGKILL")):
        train(struck("decentralized:mode=async", 0, STEP, signal.SIGKILL, tmp_path / "struck"), count, link)


@pytest.mark.parametrize(("link", "count"), one_in(2, itertools.product(LINKS, [2, 3])))
def test_another_peer_that_stops_is_left_behind(link, count, tmp_path):
    run = train(struck("decentralized:mode=async", 1, STEP, signal.SIGSTOP, tmp_path / "struck"), count, link)
    assert_complete_without(run, 1)


def go_on_after(seconds, over):
    """Continue each worker that is stopped, some seconds after it was first seen so."""
    since_s = {}
    while not over.wait(0.01):
        for pid in workers():
            if _field(pid, "State").startswith("T"):
                since_s.setdefault(pid, time.monotonic())
                if time.monotonic() - since_s[pid] > seconds:
                    os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(
    ("rank", "seconds", "link"), one_in(3, itertools.product([0, 1], [0.9, 1.0, 1.1], LINKS))
)
def test_a_peer_that_continues_about_when_the_deadline_passes_does_no_harm(rank, seconds, link, tmp_path):
    over = threading.Event()
    thread = threading.Thread(target=go_on_after, args=(seconds * DEADLINE_S, over))
    thread.start()
    try:
        run = train(
            struck("decentralized:mode=async", rank, STEP, signal.SIGSTOP, tmp_path / "struck"), 3, link
        )
    except (DeadlineError, PeerLost) as error:
        assert_names(error, 0)  # only the first peer is needed
    else:
        assert {lost for lost, _ in run.lost} <= {1}
        assert [record.step for record in run.history] == list(range(1, STEPS + 1))
    finally:
        over.set()
        thread.join()


def test_a_strategy_that_gives_up_a_rank_which_the_run_needs_ends_with_its_name():
    class GivesUp(STRATEGIES["decentralized"]):
        async def worker(self, ctx):
            if ctx.rank == 1:
                ctx.log.note_lost(0)
            await ctx.net.recv(1 - ctx.rank)

    with raised(PeerLost, rank=0):
        train(GivesUp(), 2, "shared-memory")


# All strategies

SURVIVING = [*SURVIVING_SERVERS, "decentralized", "decentralized:mode=async"]
REPORTERS = {
    "async": 3,
    "k-sync:k=2": 3,
    "fedavg:batch=4": 3,
    "async:placement=worker": 0,
    "decentralized": 0,
}
"""The rank that reports, on three workers."""


@pytest.mark.parametrize(("spec", "rank", "link"), one_in(9, itertools.product(SURVIVING, [0, 1], LINKS)))
def test_a_worker_that_stops_for_longer_than_the_deadline_is_left_behind_or_named(spec, rank, link, tmp_path):
    try:
        run = train(struck(spec, rank, STEP, signal.SIGSTOP, tmp_path / "struck"), 3, link)
    except (DeadlineError, PeerLost) as error:
        assert_names(error, rank)
    else:
        assert_complete_without(run, rank)


@pytest.mark.parametrize(("spec", "link"), one_in(5, itertools.product(REPORTERS, LINKS)))
def test_a_reporter_that_stops_for_longer_than_the_deadline_ends_the_run_with_its_name(spec, link, tmp_path):
    with pytest.raises((DeadlineError, PeerLost)) as caught:
        train(struck(spec, REPORTERS[spec], STEP, signal.SIGSTOP, tmp_path / "struck"), 3, link)
    assert_names(caught.value, REPORTERS[spec])


# Before the first step


@pytest.mark.parametrize(
    ("spec", "number", "link"),
    one_in(11, itertools.product(SURVIVING, [signal.SIGKILL, signal.SIGSTOP], LINKS)),
)
def test_a_worker_that_is_lost_before_the_first_step_is_survived_as_later(spec, number, link):
    assert_complete_without(train(struck_at_start(spec, 1, number), 3, link), 1)


def test_the_reporter_that_is_lost_before_the_first_step_ends_the_run():
    with raised(PeerLost, rank=0, reason=has("SIGKILL")):
        train(struck_at_start("decentralized", 0, signal.SIGKILL), 3, "shared-memory")


def test_too_few_workers_at_the_first_step_end_the_run_with_one_that_is_lost():
    with raised(PeerLost, rank=1, reason=has("SIGKILL")):
        train(struck_at_start("k-sync:k=3", 1, signal.SIGKILL), 3, "shared-memory")
