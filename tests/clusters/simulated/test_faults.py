"""A simulated rank that is killed, and the notification of the other ranks."""

import pytest
import torch
from refusals import has, raised, refused
from tasks import a_task, simulated

import paceline as pl
from paceline.clusters.base.job import Job
from paceline.collectives import all_reduce
from paceline.context import ANY, Strategy
from paceline.errors import DeadlockError, PeerLost
from paceline.faults import Cut, Kill, Pause, Slow
from paceline.trace import Kind

LINK = pl.Link("8bps", "1s")  # a byte a second
ONE, FIVE = torch.zeros(1, dtype=torch.uint8), torch.zeros(5, dtype=torch.uint8)


class Programs(Strategy):
    """Every rank runs one function, and all but the first may die."""

    expendable = ("worker",)

    def __init__(self, function):
        self._function = function

    async def worker(self, ctx):
        return await self._function(ctx)


def run(function, *faults, workers=2, steps=0, **changes):
    cluster = simulated(workers, faults=faults, **({"link": LINK} | changes))
    return cluster.run(Job(strategy=Programs(function), roles=("worker",) * workers, seed=0, steps=steps))


def results(function, *faults, **changes):
    return [outcome.result for outcome in run(function, *faults, **changes)]


async def lost_in(awaitable):
    """Return the lost rank in the error that ends a wait."""
    try:
        await awaitable
    except PeerLost as loss:
        return loss.rank
    return None


async def forever(ctx):
    while True:
        await ctx.sleep(1)


# The lost rank


def test_a_killed_rank_stops_at_once_and_so_do_its_background_programs():
    done = []

    async def note(ctx, name):
        for _ in range(9):
            await ctx.sleep(1)
            done.append((name, ctx.now()))

    async def program(ctx):
        if ctx.rank == 1:
            ctx.start(note(ctx, "background"))
            await note(ctx, "program")

    run(program, Kill(1, at=2.5))
    assert sorted(done) == [("background", 1), ("background", 2), ("program", 1), ("program", 2)]


def test_a_killed_rank_cleans_nothing_up_that_others_could_see():
    async def program(ctx):
        if ctx.rank == 0:
            return await lost_in(ctx.net.recv(1))
        try:
            return await forever(ctx)
        finally:
            await ctx.net.send(0, ONE)

    assert results(program, Kill(1, at=2)) == [1, None]


def test_a_rank_dies_as_it_begins_its_step():
    begun = []

    async def program(ctx):
        async for step in ctx.rounds():
            begun.append((ctx.rank, step))

    outcomes = run(program, Kill(1, step=2), steps=4)
    assert begun == [(0, step) for step in range(4)] + [(1, 0), (1, 1)]
    assert outcomes[1].lost == [(1, 2)]


def test_what_a_killed_rank_had_written_down_is_lost_with_it():
    async def program(ctx):
        if ctx.rank == 0:
            await ctx.net.recv(1)
        else:
            await ctx.net.send(0, ONE)
            await forever(ctx)

    outcome = run(program, Kill(1, at=5))[1]
    assert (outcome.messages_sent, outcome.spans, outcome.result) == (0, None, None)


def test_who_has_ended_cannot_be_killed_and_a_late_fault_takes_no_time():
    async def program(ctx):
        await ctx.sleep(ctx.rank)
        return ctx.rank

    outcomes = run(program, Kill(1, at=2), Kill(2, at=100), workers=4)
    assert [outcome.result for outcome in outcomes] == [0, 1, 2, 3]
    assert [outcome.lost for outcome in outcomes] == [[]] * 4
    assert {outcome.seconds for outcome in outcomes} == {3}


# Messages of the lost rank


def test_a_message_that_has_left_its_port_arrives_after_the_death():
    async def program(ctx):
        if ctx.rank == 0:
            await ctx.net.recv(1)
            return ctx.now(), await lost_in(ctx.net.recv(1)), ctx.now()
        await ctx.net.send(0, ONE)
        return await forever(ctx)

    assert results(program, Kill(1, at=1)) == [(2, 1, 2), None]


def test_a_message_that_has_not_left_its_port_entirely_never_arrives():
    async def program(ctx):
        if ctx.rank == 0:
            return await lost_in(ctx.net.recv(1)), ctx.now()
        return await ctx.net.send(0, FIVE)

    assert results(program, Kill(1, at=3)) == [(1, 3), None]


def test_a_message_that_waits_for_its_senders_port_dies_with_the_sender():
    async def program(ctx):
        if ctx.rank == 0:
            return await lost_in(ctx.net.recv(1, tag=2)), ctx.now()
        if ctx.rank == 1:
            ctx.start(ctx.net.send(2, FIVE))
            ctx.start(ctx.net.send(0, ONE, tag=2))
            await forever(ctx)
        return await lost_in(ctx.net.recv(1))

    assert results(program, Kill(1, at=3), workers=3) == [(1, 3), None, 1]


def test_a_message_that_never_left_takes_nobody_elses_turn():
    async def program(ctx):
        if ctx.rank == 0:
            await ctx.net.recv(3)
            return ctx.now()
        if ctx.rank == 1:
            ctx.start(ctx.net.send(2, FIVE))
            ctx.start(ctx.net.send(0, FIVE))
            await forever(ctx)
        if ctx.rank == 3:
            await ctx.sleep(6.5)
            await ctx.net.send(0, ONE)
        return None

    assert results(program, Kill(1, at=3), workers=4)[0] == 8.5


def test_messages_of_others_arrive_after_one_that_was_cut_off():
    async def program(ctx):
        if ctx.rank == 0:
            await ctx.net.recv(2)
            return await lost_in(ctx.net.recv(1))
        if ctx.rank == 2:
            await ctx.sleep(0.5)
        return await ctx.net.send(0, FIVE)

    assert results(program, Kill(1, at=3), workers=3)[0] == 1


def test_a_message_that_has_come_before_is_received_after_the_death():
    async def program(ctx):
        if ctx.rank == 0:
            await ctx.sleep(10)
            return int((await ctx.net.recv(1)).tensor), await lost_in(ctx.net.recv(1))
        await ctx.net.send(0, ONE + 7)
        return await forever(ctx)

    assert results(program, Kill(1, at=5))[0] == (7, 1)


def test_a_send_to_a_lost_rank_ends_when_its_port_has_carried_it():
    async def program(ctx):
        if ctx.rank:
            await forever(ctx)
        await ctx.net.send(1, FIVE)
        await ctx.net.send(1, FIVE)
        return ctx.now()

    assert results(program, Kill(1, at=3))[0] == 10


# Ranks that wait for the lost rank


def test_the_error_says_why_the_rank_is_lost_and_who_waited_where():
    async def program(ctx):
        await (forever(ctx) if ctx.rank else ctx.net.recv(1))

    with raised(
        PeerLost, rank=1, reason=has("pl.faults", "step 0"), waiting=has("rank 0", "rank 1", "step 0")
    ):
        run(program, Kill(1, at=2))


def test_who_waits_for_any_hears_of_each_loss_once_and_may_wait_on():
    async def program(ctx):
        if ctx.rank in (1, 2):
            await forever(ctx)
        if ctx.rank == 3:
            await ctx.sleep(10)
            return await ctx.net.send(0, ONE)
        lost = [await lost_in(ctx.net.recv(ANY)) for _ in range(2)]
        return lost, (await ctx.net.recv(ANY)).source

    assert results(program, Kill(1, at=2), Kill(2, at=3), workers=4)[0] == ([1, 2], 3)


@pytest.mark.parametrize("when", [{"at": 2}, {"step": 0}], ids=str)
def test_who_waits_for_any_while_two_die_at_one_instant_hears_of_both(when):
    async def program(ctx):
        if ctx.rank == 0:
            return [await lost_in(ctx.net.recv(ANY)) for _ in range(2)]
        async for _ in ctx.rounds():
            await ctx.sleep(10)

    assert results(program, Kill(1, **when), Kill(2, **when), workers=4, steps=1)[0] == [1, 2]


def test_who_waits_for_any_when_all_are_lost_hears_it_each_time():
    async def program(ctx):
        if ctx.rank:
            await forever(ctx)
        return [await lost_in(ctx.net.recv(ANY)) for _ in range(3)]

    assert results(program, Kill(1, at=2), Kill(2, at=3), workers=3)[0] == [1, 2, 1]


def test_whom_the_strategy_does_without_is_not_told_of_again():
    async def program(ctx):
        if ctx.rank == 1:
            await forever(ctx)
        if ctx.rank == 2:
            await ctx.sleep(10)
            return await ctx.net.send(0, ONE)
        await ctx.sleep(5)
        ctx.log.note_lost(1)
        return (await ctx.net.recv(ANY)).source

    assert results(program, Kill(1, at=2), workers=3)[0] == 2


def test_a_later_wait_for_a_lost_rank_ends_at_once_begun_before_or_after():
    async def program(ctx):
        if ctx.rank:
            await forever(ctx)
        before = ctx.start(ctx.net.recv(1))
        await ctx.sleep(5)
        return await lost_in(before), await lost_in(ctx.net.recv(1)), ctx.now()

    assert results(program, Kill(1, at=2))[0] == (1, 1, 5)


def test_a_background_program_hears_of_it_where_it_waits_for_that_rank_alone():
    async def program(ctx):
        if ctx.rank:
            return await forever(ctx)
        alone = ctx.start(lost_in(ctx.net.recv(1)))
        await ctx.sleep(5)
        return alone.done, await alone

    assert results(program, Kill(1, at=2))[0] == (True, 1)


def test_a_background_program_that_waits_for_any_waits_on_for_the_others():
    async def source_of(receipt):
        return (await receipt).source

    async def program(ctx):
        if ctx.rank == 1:
            await forever(ctx)
        if ctx.rank == 2:
            await ctx.sleep(10)
            return await ctx.net.send(0, ONE)
        background = ctx.start(source_of(ctx.net.recv(ANY)))
        await ctx.sleep(20)
        return await background

    assert results(program, Kill(1, at=2), workers=3)[0] == 2


def test_a_loss_that_a_background_program_does_not_catch_is_raised_in_the_program():
    async def wait(ctx):
        await ctx.net.recv(1)

    async def program(ctx):
        if ctx.rank:
            return await forever(ctx)
        ctx.start(wait(ctx))
        return await lost_in(ctx.sleep(5)), ctx.now()

    assert results(program, Kill(1, at=2))[0] == (1, 2)


def test_who_waits_for_the_first_of_several_handles_hears_of_it_and_may_wait_on():
    async def program(ctx):
        if ctx.rank == 1:
            await forever(ctx)
        if ctx.rank == 2:
            await ctx.sleep(10)
            return await ctx.net.send(0, ONE)
        handles = [ctx.start(ctx.net.recv(source)) for source in (1, 2)]
        lost = await lost_in(ctx.first(handles))
        return lost, await ctx.first(handles) is handles[1]

    assert results(program, Kill(1, at=2), workers=3)[0] == (1, True)


def test_a_barrier_of_a_window_ends_with_the_loss():
    async def program(ctx):
        window = ctx.net.window("shared", rows=1, like=ONE)
        if ctx.rank == 1:
            await forever(ctx)
        return await lost_in(window.barrier()), ctx.now()

    assert results(program, Kill(1, at=2), workers=3) == [(1, 2), None, (1, 2)]


def test_a_barrier_that_the_rank_came_to_before_it_died_is_passed():
    async def program(ctx):
        window = ctx.net.window("shared", rows=1, like=ONE)
        await ctx.sleep(5 if ctx.rank == 2 else 0)
        return await lost_in(window.barrier()), await lost_in(window.barrier())

    assert results(program, Kill(1, at=2), workers=3) == [(None, 1), None, (None, 1)]


def test_a_ring_that_is_else_timed_as_a_whole_ends_with_the_loss():
    async def program(ctx):
        await all_reduce(ctx, torch.zeros(64), algorithm="ring")

    with raised(PeerLost, rank=5):
        run(program, Kill(5, at="1ms"), workers=32, link=pl.Link("1Mbps", "1ms"))


# How a run ends


def test_a_rank_that_the_run_cannot_do_without_ends_it_and_nobody_can_catch_that():
    async def program(ctx):
        while True:
            await lost_in(ctx.sleep(1))

    with raised(PeerLost, rank=0, reason=has("pl.faults")):
        run(program, Kill(0, at=2))
    with raised(PeerLost, rank=1):
        pl.run_program(program, simulated(2, faults=[Kill(1, at=2)]))


def test_ranks_that_wait_for_each_other_after_a_loss_are_a_deadlock():
    async def program(ctx):
        if ctx.rank == 1:
            await forever(ctx)
        await ctx.net.recv(2 - ctx.rank)

    with raised(DeadlockError, "rank 0", "rank 2"):
        run(program, Kill(1, at=2), workers=3)


def test_the_same_faults_give_the_same_trace():
    async def program(ctx):
        if ctx.rank:
            async for _ in ctx.rounds():
                await ctx.net.send(0, FIVE)
            return
        for _ in range(7):
            await lost_in(ctx.net.recv(ANY))

    def trace():
        return run(program, Kill(1, step=2), workers=3, steps=4)[0].spans

    spans = trace()
    assert len(spans.of(Kind.RECEIVE)) == 6
    assert spans == trace()


# What is refused


@pytest.mark.parametrize("faults", [Kill(1, at=0), "1", [1], [None], 3])
def test_faults_are_a_sequence_of_faults(faults):
    with refused("faults", faults, bound=has("pl.faults")):
        simulated(2, faults=faults)


def test_faults_name_ranks_that_exist():
    async def program(ctx):
        pass

    with refused("faults", 2, bound=has(0, 1)):
        run(program, Kill(2, at=1))


def test_a_strategy_that_uses_fewer_ranks_is_spared_the_faults_of_the_others():
    async def program(ctx):
        return ctx.rank

    cluster = simulated(4, faults=[Kill(3, at=0)])
    assert cluster.run(Job(strategy=Programs(program), roles=("worker",), seed=0))[0].result == 0


def test_the_cluster_says_its_faults():
    assert str(simulated(2, faults=[Kill(1, at="5ms")])).endswith("rank 1 killed at 5 ms")


# Ranks that are paused or slow


def test_a_paused_rank_does_nothing_until_the_pause_ends():
    async def program(ctx):
        for _ in range(4):
            await ctx.sleep(1)
        return ctx.now()

    assert results(program, Pause(1, at=2.5, seconds=10)) == [4, 13.5]


def test_a_pause_in_a_step_begins_with_the_step():
    async def program(ctx):
        async for _ in ctx.rounds():
            await ctx.sleep(1)
        return ctx.now()

    assert results(program, Pause(1, step=2, seconds=10), steps=4) == [4, 14]


def test_messages_of_a_paused_rank_that_are_under_way_arrive():
    async def program(ctx):
        if ctx.rank == 1:
            await ctx.net.send(0, FIVE)  # at the port for 5 s
            return None
        await ctx.net.recv(1)
        return ctx.now()

    assert results(program, Pause(1, at=1, seconds=100)) == [6, None]


@pytest.mark.parametrize(
    ("fault", "seconds"),
    [
        (Slow(1, factor=3, at=0.25, seconds=0.5), 1.0 + 0.5 * 2 / 3),
        (Slow(1, factor=4, step=0, seconds=99), 4.0),
        (Pause(1, at=0.25, seconds=2), 3.0),
    ],
)
def test_a_gradient_takes_longer_on_a_slow_or_paused_rank(fault, seconds):
    compute = pl.times.Constant(0.1)
    cluster = pl.Simulated(workers=2, compute=compute, link=pl.Link.ideal(), faults=[fault])
    assert pl.train(a_task(), "all-reduce", cluster, steps=10).seconds == pytest.approx(seconds)


def test_the_same_faults_give_the_same_trace_byte_for_byte(tmp_path):
    faults = [Slow(1, factor=3, step=1, seconds=0.2), Pause(0, at=0.05, seconds=0.3)]
    compute = pl.times.Exponential(0.01)
    runs = [
        pl.train(a_task(), "k-sync:k=2", simulated(3, compute=compute, faults=each), steps=8)
        for each in (faults, faults, ())
    ]
    runs[0].trace.save(tmp_path / "a.json")
    runs[1].trace.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert (runs[0].parameters == runs[1].parameters).all()
    assert runs[0].seconds > runs[2].seconds


def test_a_step_that_the_run_does_not_have_is_refused():
    with refused("faults", 10, bound=has(10)):
        pl.train(a_task(), "all-reduce", simulated(2, faults=[Kill(1, step=10)]), steps=10)


# Links that hold messages back


async def says_the_time(ctx):
    """Rank 0 sends a byte to each other rank, every second, and each returns the times at which three arrive."""
    if ctx.rank == 0:
        for _ in range(3):
            for other in range(1, ctx.net.size):
                await ctx.start(ctx.net.send(other, ONE))
            await ctx.sleep(10.0)
        return None
    return [(await ctx.net.recv(0), ctx.now())[1] for _ in range(3)]


def test_a_cut_holds_back_what_would_begin_to_arrive_and_nothing_else():
    free = results(says_the_time, workers=3)
    cut = results(says_the_time, Cut([0, 2], at=9.0, seconds=12.0), workers=3)
    assert cut[2] == free[2], "both are on the same side"
    assert cut[1][0] == free[1][0]
    assert cut[1][1] == 9.0 + 12.0 + 1.0, "it begins to arrive at the end of the cut, and is a byte long"
    assert cut[1][2] == free[1][2]


def test_messages_of_two_cuts_arrive_after_the_last_one_in_order():
    faults = [Cut([0], at=0, seconds=12), Cut("1+2", at=8, seconds="13s")]
    times_s = results(says_the_time, *faults, workers=3)[1]
    assert times_s[:2] == [22.0, 23.0]
    assert times_s == sorted(times_s)


def test_a_rank_that_cannot_reach_the_driver_for_too_long_is_lost_and_nothing_of_it_arrives():
    async def program(ctx):
        if ctx.rank == 1:
            await ctx.sleep(5.0)
            await ctx.net.send(0, ONE)
            await forever(ctx)
        return await lost_in(ctx.net.recv(1)), ctx.now()

    assert results(program, Cut([1], at=2.0, seconds=20.0))[0] == (1, 17.0)
    assert results(program, Cut([1], at=2.0, seconds=15.0), Kill(1, at=30.0))[0] == (None, 18.0)


def test_a_cut_needs_a_network_and_ranks_of_the_run():
    with refused("faults", "Cut", remedy=has("link")):
        pl.train(a_task(), "sync", simulated(2, link="shared-memory", faults=[Cut([1], at=1)]), steps=2)
    with refused("faults", 2):
        pl.train(a_task(), "sync:placement=worker", simulated(2, faults=[Cut([1, 2], at=1)]), steps=2)
