"""Waits of a rank: progress extends them, and errors name a rank without progress."""

import contextlib
import re
import time

import pytest
import torch
from refusals import has, raised

import paceline as pl
from paceline.errors import DeadlineError
from paceline.links.memory.rings import RING_BYTES

LARGE = torch.ones(RING_BYTES, dtype=torch.float64)  # eight times what a ring holds
TRIES = 20


async def hear_at_last(ctx, source):
    """The sum of a message. On a busy machine it may take more than one deadline."""
    for _ in range(TRIES):
        with contextlib.suppress(DeadlineError):
            return (await ctx.net.recv(source)).tensor.sum().item()
    return None


def test_a_message_that_stops_half_way_is_named_though_its_receiver_has_other_things_to_do():
    """Otherwise a worker that continues to compute and push would not detect that its parameters never arrive
    completely."""

    async def program(ctx):
        if ctx.rank == 1:
            ctx.net.send(0, LARGE).poll()  # exactly as much as fits into the ring
            time.sleep(3600)
        arriving = ctx.start(ctx.net.recv(1))
        while not arriving.done:
            await ctx.sleep(0.01)

    with raised(DeadlineError, rank=0, operation=has("rank 1", "step 0"), awaited="rank 1", deadline_s=1.0):
        pl.run_program(program, pl.Local(workers=2, deadline_s=1.0))


def test_a_message_that_goes_on_slowly_may_take_longer_than_the_deadline():
    """In 32 MB there are eight rings full; each takes a fifth of a deadline."""
    deadline_s = 4.0

    async def program(ctx):
        took_s = 0.0
        while took_s <= deadline_s:  # a message is quick if the reader empties the ring while it is filled
            if ctx.rank == 1:
                took_s = send_slowly(ctx)
                await ctx.net.send(0, torch.tensor([took_s], dtype=torch.float64), tag=1)
            else:
                assert torch.equal((await ctx.net.recv(1)).tensor, LARGE)
                took_s = (await ctx.net.recv(1, tag=1)).tensor.item()
        return took_s

    def send_slowly(ctx):
        start_s, sending = time.monotonic(), ctx.net.send(0, LARGE)
        while not sending.poll():
            time.sleep(deadline_s / 5)
        return time.monotonic() - start_s

    run = pl.run_program(program, pl.Local(workers=2, deadline_s=deadline_s))
    assert run.results[0] == run.results[1] > deadline_s


def test_a_rank_may_compute_for_longer_than_the_deadline():
    async def program(ctx):
        time.sleep(2.0)
        return ctx.rank

    assert pl.run_program(program, pl.Local(workers=2, deadline_s=1.0)).results == [0, 1]


@pytest.mark.parametrize("link", ["shared-memory", "tcp"])
def test_who_gave_up_waiting_and_waits_again_gets_the_message(link, tmp_path):
    given_up = tmp_path / "given up"

    async def program(ctx):
        if ctx.rank == 1:
            while not given_up.exists():
                time.sleep(0.01)
            await ctx.net.send(0, torch.ones(3))
            return 3.0
        with pytest.raises(DeadlineError):
            await ctx.net.recv(1)
        given_up.touch()
        return await hear_at_last(ctx, 1)

    run = pl.run_program(program, pl.Local(workers=2, link=link, deadline_s=1.0))
    assert run.results == [3.0, 3.0]


def test_who_is_told_of_another_wait_in_vain_and_waits_again_gets_the_message(tmp_path):
    """Rank 1 never completes its message to rank 0. Rank 0 detects this while it waits for rank 2."""
    told = tmp_path / "told"

    async def program(ctx):
        if ctx.rank == 1:
            ctx.net.send(0, LARGE).poll()
        while ctx.rank > 0 and not told.exists():
            time.sleep(0.01)
        if ctx.rank == 2:
            await ctx.net.send(0, torch.ones(3))
        if ctx.rank > 0:
            return 3.0
        arriving = ctx.start(ctx.net.recv(1))
        await ctx.sleep(0.5)
        with pytest.raises(DeadlineError):
            await ctx.net.recv(2)
        ctx.log.note_lost(1)
        told.touch()
        heard = await hear_at_last(ctx, 2)
        arriving.cancel()
        return heard

    run = pl.run_program(program, pl.Local(workers=3, deadline_s=1.0))
    assert run.results == [3.0, 3.0, 3.0]


def test_who_waits_for_one_that_others_have_given_up_is_waited_for(tmp_path):
    """Rank 2 begins to wait for rank 1 just after rank 0 has abandoned it. Later rank 2 abandons it too."""
    given_up = tmp_path / "given up"

    async def program(ctx):
        if ctx.rank == 1:
            while not (tmp_path / "end").exists():
                time.sleep(0.01)
            return
        while ctx.rank == 2 and not given_up.exists():
            time.sleep(0.01)
        with pytest.raises(DeadlineError):
            await ctx.net.recv(1)
        ctx.log.note_lost(1)
        if ctx.rank == 2:
            await ctx.net.send(0, torch.ones(3))
            return
        given_up.touch()
        while True:
            try:
                await ctx.net.recv(2)
                break
            except DeadlineError as late:
                if late.culprit != 2:  # which has not been scheduled on a core yet
                    raise
        (tmp_path / "end").touch()

    pl.run_program(program, pl.Local(workers=3, deadline_s=2.0))


def test_a_wait_for_a_rank_that_was_given_up_and_still_runs_has_a_deadline_too(tmp_path):
    async def program(ctx):
        if ctx.rank == 1:
            while not (tmp_path / "end").exists():
                time.sleep(0.01)
            return None
        ctx.log.note_lost(1)
        with pytest.raises(DeadlineError) as late:
            await ctx.net.recv(1)
        (tmp_path / "end").touch()
        return late.value.culprit

    assert pl.run_program(program, pl.Local(workers=2, deadline_s=0.5)).results[0] == 1


def test_a_rank_that_has_not_waited_yet_works_since_the_run_began(tmp_path):
    async def program(ctx):
        if ctx.rank == 1:
            (tmp_path / "begun").touch()
            while not (tmp_path / "end").exists():
                time.sleep(0.01)
            return None
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        with pytest.raises(DeadlineError) as late:
            await ctx.net.recv(1)
        (tmp_path / "end").touch()
        return str(late.value)

    start_s = time.monotonic()
    said = pl.run_program(program, pl.Local(workers=2, deadline_s=1.0)).results[0]
    seconds = re.search(r"rank 1 sleeps, for ([\d.]+) s working", said)
    assert float(seconds[1]) - 0.05 <= time.monotonic() - start_s  # it is rounded
