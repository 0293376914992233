"""Local workers that communicate over TCP: properties that also hold over shared memory, and those that do not."""

import os
import signal

import pytest
import torch
from clusters.test_failures import becomes_nan, kills_itself, place_of, raises, stops_itself, unlucky_task
from overlap import SendsAsItComputes
from processes import PATIENCE_S, wait_until, workers
from refusals import has, raised, refused
from tasks import a_task, numbers

import paceline as pl
from paceline.collectives import all_reduce, broadcast
from paceline.context import ANY
from paceline.errors import DeadlineError, LossNotFiniteError, PeerLost, WorkerError
from paceline.trace import Kind

UNLUCKY = 5
LARGE = 2**22  # floats: more than the system's buffers hold


def over_tcp(count, **changes):
    return pl.Local(workers=count, link="tcp", **changes)


def run_on(count, program, **changes):
    return pl.run_program(program, over_tcp(count, **changes)).results


# Results


@pytest.mark.parametrize("encrypt", [False, True], ids=["plain", "encrypted"])
def test_messages_of_all_sizes_pass_between_all_ranks(encrypt):
    async def program(ctx):
        found = []
        for count in (0, 1, 1000, LARGE):
            for other in range(ctx.net.size):
                ctx.start(ctx.net.send(other, torch.full((count,), float(ctx.rank))))
            for other in range(ctx.net.size):
                tensor = (await ctx.net.recv(other)).tensor
                found.append(len(tensor) == count and bool((tensor == other).all()))
        return all(found)

    assert run_on(3, program, encrypt=encrypt) == [True] * 3


def test_collectives_pass_tcp():
    async def program(ctx):
        tensor = torch.full((1000,), float(ctx.rank))
        await all_reduce(ctx, tensor, "ring")
        other = torch.full((LARGE,), float(ctx.rank))
        await broadcast(ctx, other, 2)
        return [tensor.sum().item(), other.sum().item()]

    assert run_on(4, program) == [[6000.0, 2.0 * LARGE]] * 4


def test_any_hears_from_every_rank():
    async def program(ctx):
        if ctx.rank:
            await ctx.net.send(0, torch.tensor([ctx.rank]))
            return None
        return sorted([(await ctx.net.recv(ANY)).source for _ in range(3)])

    assert run_on(4, program)[0] == [1, 2, 3]


def test_large_messages_cross_without_a_deadlock():
    async def program(ctx):
        handle = ctx.start(ctx.net.send(1 - ctx.rank, torch.full((LARGE,), float(ctx.rank))))
        message = await ctx.net.recv(1 - ctx.rank)
        await handle
        return message.tensor.sum().item()

    assert run_on(2, program) == [float(LARGE), 0.0]


def test_a_large_message_goes_on_while_its_sender_computes():
    cluster = over_tcp(2, delay={0: pl.times.Constant(PATIENCE_S)})
    run = pl.train(a_task(), SendsAsItComputes(LARGE), cluster, steps=1)
    assert len(run.trace.spans[0].of(Kind.CANCELLED)) == 1


def test_who_sleeps_is_not_kept_awake_by_messages_that_it_does_not_ask_for():
    async def program(ctx):
        if ctx.rank == 0:
            await ctx.net.send(1, torch.zeros(1000))
            return None
        bells, sleeps = ctx.board.bells, []
        sleep, bells.sleep = bells.sleep, lambda *args: (sleeps.append(args), sleep(*args))
        await ctx.sleep(0.5)
        await ctx.net.recv(0)
        return len(sleeps)

    assert run_on(2, program)[1] < 20


def test_every_rank_is_a_host_of_its_own():
    async def program(ctx):
        own = ctx.net.split((ctx.rank,)).window("own", rows=1, like=torch.zeros(2))
        return [list(ctx.net.hosts), ctx.net.shares_memory, own.tensor.sum().item()]

    assert run_on(2, program) == [[[0, 1], False, 0.0]] * 2


def test_what_a_rank_said_before_it_ended_still_arrives():
    async def program(ctx):
        if ctx.rank:
            await ctx.net.send(0, numbers(100_000))
            return None
        await ctx.sleep(0.5)
        return [len((await ctx.net.recv(rank)).tensor) for rank in (1, 2)]

    assert run_on(3, program)[0] == [100_000, 100_000]


def test_a_rank_may_end_while_others_still_read_what_it_has_sent():
    async def program(ctx):
        if ctx.rank == 0:
            for _ in range(20):
                await ctx.net.send(1, torch.zeros(LARGE // 8))
        else:
            for _ in range(20):
                await ctx.net.recv(0)
            await ctx.sleep(0.3)

    run_on(2, program)
    assert workers() == []


def test_runs_can_follow_each_other():
    async def program(ctx):
        tensor = torch.ones(10)
        await all_reduce(ctx, tensor, "ring")
        return tensor.sum().item()

    for _ in range(3):
        assert run_on(2, program) == [20.0, 20.0]


# Failures


def test_a_rank_that_is_killed_is_named_with_what_others_waited_for():
    _, rank = place_of(UNLUCKY, 3)
    with raised(PeerLost, rank=rank, reason=has("SIGKILL"), waiting=has("receive")):
        pl.train(unlucky_task(kills_itself), "all-reduce:algorithm=ring", over_tcp(3), steps=100)
    assert workers() == []


def test_a_rank_killed_in_the_middle_of_a_message_is_missed():
    async def program(ctx):
        if ctx.rank == 0:
            await ctx.net.recv(1)
        else:
            ctx.start(ctx.net.send(0, torch.zeros(10 * LARGE)))
            await ctx.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)

    with raised(PeerLost, rank=1):
        run_on(2, program)


def test_a_strategy_that_can_go_on_without_the_lost_does():
    class Once:
        def __init__(self):
            self.done = False

        def __call__(self, progress):
            if progress.step >= 3 and not self.done:
                self.done = True
                os.kill(workers()[-2], signal.SIGKILL)  # the last is the server

    cluster = over_tcp(3, delay=pl.times.Constant(0.02))
    run = pl.train(a_task(), "async", cluster, steps=60, progress=Once())
    assert run.steps == 60


def test_a_rank_that_stops_is_named_when_the_deadline_has_passed():
    _, rank = place_of(UNLUCKY, 2)
    cluster = over_tcp(2, deadline_s=2.0)
    with pytest.raises(DeadlineError) as caught:
        pl.train(unlucky_task(stops_itself), "all-reduce:algorithm=ring", cluster, steps=100)
    assert caught.value.awaited == f"rank {rank}"


def test_a_send_to_one_who_does_not_read_meets_the_deadline():
    async def program(ctx):
        if ctx.rank == 0:
            await ctx.net.send(1, torch.zeros(LARGE))
        else:
            await ctx.sleep(30)

    with raised(DeadlineError, rank=0, operation=has(1)):
        run_on(2, program, deadline_s=0.5)


@pytest.mark.slow
def test_a_rank_that_waits_for_one_that_has_ended_is_told_so():
    async def program(ctx):
        if ctx.rank == 0:
            await ctx.net.recv(1)

    with raised(PeerLost, rank=1, reason=has("ended")):
        run_on(2, program)


def test_an_exception_on_one_rank_names_it():
    step, rank = place_of(UNLUCKY, 2)
    with pytest.raises(WorkerError) as caught:
        pl.train(unlucky_task(raises), "all-reduce", over_tcp(2), steps=100)
    assert (caught.value.rank, caught.value.step) == (rank, step)


def test_a_loss_that_is_not_a_number_is_named():
    with pytest.raises(LossNotFiniteError):
        pl.train(unlucky_task(becomes_nan), "sync", over_tcp(2), steps=100)


def test_ctrl_c_ends_all_workers():
    def interrupt(progress):
        if progress.step >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pl.train(a_task(), "all-reduce", over_tcp(3), steps=10**6, progress=interrupt)
    wait_until(lambda: workers() == [], "the workers have ended")


# Bad input


def test_a_cluster_says_that_it_talks_over_tcp():
    assert str(over_tcp(2)) == "2 local workers, over TCP"
    assert str(over_tcp(2, encrypt=True)) == "2 local workers, over encrypted TCP"


@pytest.mark.parametrize("link", ["shared-memory", pl.Link("1Gbps")])
def test_what_is_no_network_is_not_encrypted(link):
    with refused("encrypt", True, bound=has("tcp")):
        pl.Local(link=link, encrypt=True)


def test_what_would_go_around_the_encryption_is_refused():
    async def program(ctx):
        await all_reduce(ctx, torch.ones(4), "native")

    with refused("algorithm", "native", bound=has("TCP")):
        run_on(2, program, encrypt=True)


def test_native_passes_plain_tcp():
    async def program(ctx):
        tensor = torch.ones(4)
        await all_reduce(ctx, tensor, "native")
        return tensor.sum().item()

    assert run_on(2, program) == [8.0, 8.0]
