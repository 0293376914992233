"""Ranks that end in odd ways, and drivers with little room: no wait is for ever, and nothing is left open."""

import itertools
import os
import resource
import signal
import time

import pytest
from clusters.test_failures import kills_itself, raises, unlucky_task
from processes import workers
from tasks import a_task

import paceline as pl
from paceline.clusters import launch, open_files
from paceline.errors import ConfigurationError, PeerLost, RunError

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


# Few files


@pytest.fixture
def room_for():
    """Set how many more files this process may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def set_room(more):
        *used, _ = sorted(map(int, os.listdir("/proc/self/fd")))  # the last one was for the listing
        free = (fd for fd in range(soft) if fd not in used)
        limit = next(itertools.islice(free, more, None))  # a limit is a number that no descriptor reaches
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))

    yield set_room
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_too_low_a_limit_of_open_files_is_refused_with_the_number_that_a_run_needs(
    room_for, file_descriptors
):
    pl.train(a_task(), "all-reduce", pl.Local(workers=2), steps=1)
    before = file_descriptors()
    room_for(10)
    with pytest.raises(
        ConfigurationError,
        match=r"ulimit -n\) must be at least \d+ for a run of 2 ranks.*but got \d+; raise it",
    ):
        pl.train(a_task(), "all-reduce", pl.Local(workers=2), steps=1)
    assert file_descriptors() == before


def test_files_that_run_out_anywhere_in_a_run_are_named_and_none_is_left(
    room_for, file_descriptors, monkeypatch
):
    monkeypatch.setattr(open_files, "_RUN_FILES", 0)
    monkeypatch.setattr(open_files, "_RANK_FILES", 0)
    task, cluster = a_task(), pl.Local(workers=2)
    pl.train(task, "all-reduce:algorithm=shared", cluster, steps=1)
    before, refused = file_descriptors(), 0
    for more in (*range(0, 14, 2), 9, 24):
        room_for(more)
        try:
            pl.train(task, "all-reduce:algorithm=shared", cluster, steps=1)
        except ConfigurationError as error:
            refused += "the limit of open files (ulimit -n) must be" in str(error)
        assert file_descriptors() == before
        assert workers() == []
    assert 4 < refused < 9, "with little room it is refused, with enough it runs"
