"""Ranks that end in odd ways: no wait is for ever, and nothing is left open."""

import os
import signal
import time

import pytest
from clusters.test_failures import kills_itself, raises, unlucky_task
from processes import workers
from tasks import a_task

import paceline as pl
from paceline.clusters import launch
from paceline.errors import PeerLost, RunError

LINKS = ["shared-memory", "tcp"]


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


# Ranks that neither speak nor end


@pytest.mark.parametrize("link", LINKS)
def test_a_worker_that_stops_after_its_last_letter_does_not_keep_the_run(link):
    async def program(ctx):
        channel = ctx.home._channel
        send = channel.send

        def send_and_stop(word, *rest):
            send(word, *rest)
            if word == "done":
                stop()

        channel.send = send_and_stop
        return ctx.rank

    assert pl.run_program(program, pl.Local(workers=2, link=link)).results == [0, 1]
    assert workers() == []


def test_a_worker_that_closes_its_files_and_lives_on_is_lost():
    async def program(ctx):
        if ctx.rank == 1:
            os.closerange(3, 1000)
            time.sleep(3600)
        await ctx.recv(1)

    with pytest.raises(PeerLost, match=r"rank 1 is lost \(it fell silent.*was still there, and was killed"):
        pl.run_program(program, pl.Local(workers=2))


def test_a_worker_that_stops_in_the_middle_of_its_last_letter_is_lost(monkeypatch):
    monkeypatch.setattr(launch, "LETTER_S", 0.5)

    async def program(ctx):
        if ctx.rank == 1:
            ctx.home._channel.socket.sendall((1000).to_bytes(4, "little") + b'["done", ')
            stop()

    with pytest.raises(
        PeerLost, match=r"rank 1 is lost \(it fell silent.*in the middle of a letter, for 0.5 s"
    ):
        pl.run_program(program, pl.Local(workers=2))


def test_a_worker_that_asks_much_and_reads_no_answer_is_lost(monkeypatch):
    monkeypatch.setattr(launch, "LETTER_S", 0.5)

    async def program(ctx):
        channel = ctx.home._channel
        while ctx.rank == 1:
            channel.send("window", {"name": "same", "nbytes": 1})

    with pytest.raises(PeerLost, match=r"rank 1 is lost \(it fell silent.*with a letter unread, for 0.5 s"):
        pl.run_program(program, pl.Local(workers=2))


# What a failed run holds


@pytest.mark.parametrize("link", LINKS)
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
