"""Ranks that end in unusual ways: no wait is unlimited, and no descriptor stays open."""

import contextlib
import itertools
import os
import signal
import time

import pytest
import torch
from clusters.test_failures import kills_itself, raises, unlucky_task
from processes import workers
from refusals import has, raised
from tasks import a_task, simulated
from torch import nn

import paceline as pl
from paceline.clusters.local import launch
from paceline.errors import DeadlineError, PeerLost, RunError
from paceline.strategies.decentralized import Decentralized
from paceline.strategies.map_reduce import MapReduce
from paceline.strategies.shared.gossip.pairwise import _FAREWELL

LINKS = ["shared-memory", "tcp"]


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


# Ranks that neither send nor end


@pytest.mark.parametrize("link", LINKS)
def test_a_worker_that_stops_after_its_last_letter_does_not_keep_the_run(link):
    async def program(ctx):
        channel = ctx.driver._channel
        send = channel.send

        def send_and_stop(word, *rest):
            send(word, *rest)
            if word == "done":
                stop()

        channel.send = send_and_stop
        return ctx.rank

    assert pl.run_program(program, pl.Local(workers=2, link=link)).results == [0, 1]
    assert workers() == []


def test_a_worker_that_stops_while_it_prepares_is_named():
    class StopsWhileItPrepares(MapReduce):
        cuts_model = True  # cutting may take long, but not on a rank that is stopped

        def prepare(self, ctx):
            if ctx.rank == 1:
                stop()

    with raised(DeadlineError, culprit=1, view=has("rank 1", "stopped")):
        pl.train(a_task(), StopsWhileItPrepares(), pl.Local(workers=2, deadline_s=2), steps=1)
    assert workers() == []


def test_a_worker_that_closes_its_files_and_lives_on_is_lost():
    async def program(ctx):
        if ctx.rank == 1:
            os.closerange(3, 1000)
            time.sleep(3600)
        await ctx.net.recv(1)

    with raised(PeerLost, rank=1):
        pl.run_program(program, pl.Local(workers=2))


def test_a_worker_that_stops_in_the_middle_of_its_last_letter_is_lost(monkeypatch):
    monkeypatch.setattr(launch, "LETTER_S", 0.5)

    async def program(ctx):
        if ctx.rank == 1:
            ctx.driver._channel.socket.sendall((1000).to_bytes(4, "little") + b'["done", ')
            stop()

    with raised(PeerLost, rank=1, reason=has("0.5")):
        pl.run_program(program, pl.Local(workers=2))


def test_a_worker_that_asks_much_and_reads_no_answer_is_lost(monkeypatch):
    monkeypatch.setattr(launch, "LETTER_S", 0.5)

    async def program(ctx):
        channel = ctx.driver._channel
        while ctx.rank == 1:
            channel.send("window", {"name": "same", "nbytes": 1})

    with raised(PeerLost, rank=1, reason=has("0.5")):
        pl.run_program(program, pl.Local(workers=2))


# Memory held by a failed run


@pytest.mark.parametrize("link", ["shared-memory", pytest.param("tcp", marks=pytest.mark.slow)])
def test_the_errors_of_failed_runs_hold_no_file_open(link, file_descriptors):
    cluster = pl.Local(workers=2, link=link)
    pl.train(a_task(), "all-reduce", cluster, steps=1)
    before, kept = file_descriptors(), []
    for happens in (raises, kills_itself) * 2:
        with pytest.raises(RunError) as caught:
            pl.train(unlucky_task(happens), "map-reduce", cluster, steps=100)
        kept.append(caught.value)
    with pytest.raises(LookupError) as caught:
        pl.train(a_task(), "all-reduce", cluster, steps=10**6, progress=lambda _: {}[0])
    assert file_descriptors() == before
    assert len(kept) == 4


# Ranks that are late


@pytest.mark.parametrize(
    "spec",
    ["async", *(pytest.param(each, marks=pytest.mark.slow) for each in ("k-async:k=2", "k-batch-async:k=2"))],
)
def test_a_run_that_is_done_is_returned_without_its_straggler(spec):
    cluster = pl.Local(workers=3, delay={1: pl.times.Constant("3600s")}, deadline_s=2.0)
    run = pl.train(a_task(), spec, cluster, steps=8)
    assert run.steps == len(run.history) == 8
    assert [rank for rank, _ in run.lost] == [1]
    assert workers() == []


def task_of_which_one_rank_stops(mark):
    """The first rank that reaches its second batch is stopped."""
    batches = itertools.count(1)

    def loss(outputs, targets):
        if next(batches) == 2:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
                stop()
        return nn.functional.mse_loss(outputs, targets)

    return a_task(loss=loss)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["k-sync:k=2", "k-batch-sync:k=2", "async"])
def test_a_run_that_is_done_is_returned_without_a_worker_that_was_stopped(spec, tmp_path):
    task = task_of_which_one_rank_stops(tmp_path / "stopped")
    run = pl.train(task, spec, pl.Local(workers=3, deadline_s=2.0), steps=30)
    assert run.steps == len(run.history) == 30
    assert len(run.lost) == 1
    assert workers() == []


def test_a_peer_that_stops_at_the_end_of_an_asynchronous_run_is_left_behind():
    """Rank 1 stops when all updates are done, before its farewell."""

    class Stopping(Decentralized):
        async def worker(self, ctx):
            if ctx.rank == 1:
                start = ctx.start

                def start_or_stop(work):
                    if getattr(work, "tag", None) == _FAREWELL:
                        stop()
                    return start(work)

                ctx.start = start_or_stop
            await super().worker(ctx)

    cluster = pl.Local(workers=3, deadline_s=2.0)
    run = pl.train(a_task(), Stopping(mode="async", topology="complete"), cluster, steps=12)
    assert [rank for rank, _ in run.lost] == [1]
    assert run.steps == 12


def test_a_rank_that_stops_while_nobody_waits_for_it_is_named():
    async def program(ctx):
        stop()

    with raised(DeadlineError, rank=-1, awaited="rank 0", deadline_s=1.0):
        pl.run_program(program, pl.Local(workers=1, deadline_s=1.0))


def test_a_rank_that_stays_when_all_else_is_done_is_named():
    async def program(ctx):
        if ctx.rank == 1:
            time.sleep(3600)

    with raised(DeadlineError, rank=-1, awaited="rank 1", deadline_s=1.0):
        pl.run_program(program, pl.Local(workers=2, deadline_s=1.0))


def test_a_model_that_is_complete_is_returned_though_a_rank_stops_at_its_end():
    class Stopping(MapReduce):
        async def worker(self, ctx):
            await super().worker(ctx)
            if ctx.rank == 1:
                stop()

    run = pl.train(a_task(), Stopping(), pl.Local(workers=2, deadline_s=1.0), steps=3)
    assert [rank for rank, _ in run.lost] == [1]
    assert torch.equal(run.parameters, pl.train(a_task(), "map-reduce", simulated(2), steps=3).parameters)
