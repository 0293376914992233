"""If messages or faults disturb a group operation, only this one falls back. The results are those of single
messages."""

import numpy as np
import pytest
import torch
from ring_programs import MESSAGE_BYTES, draw_script, run_script, start_script
from tasks import a_task, simulated

import paceline as pl
from paceline.checkpoints.store import Store
from paceline.clusters.base.job import Job
from paceline.clusters.simulated import whole_collective
from paceline.clusters.simulated.whole_collective import WholeCollective
from paceline.collectives import all_gather, all_reduce, reduce_scatter
from paceline.context import Strategy
from paceline.errors import PeerLost
from paceline.faults import Kill
from paceline.trace import Kind
from paceline.trace.spans import SPAN_WITHOUT_MESSAGE

LINK = pl.Link("1Gbps", "50us")
NETWORKS = {
    "uniform": {"link": LINK},
    "slow": {"link": pl.Link("100Mbps", "20us")},
    "hosts": {"link": LINK, "hosts": 2, "inside": pl.Link("10Gbps", "5us")},
}


@pytest.fixture
def both_ways(monkeypatch):
    """Return a function's results with whole timing of groups of 4 ranks, and with single messages."""

    def run(function):
        monkeypatch.setattr(whole_collective, "MANY", 4)
        whole = function()
        monkeypatch.setattr(whole_collective, "MANY", 10**9)
        return whole, function()

    return run


@pytest.fixture
def timed(monkeypatch):
    """Collectives that were timed as a whole."""
    found = []
    begin = WholeCollective.begin
    monkeypatch.setattr(WholeCollective, "begin", lambda self: (found.append(self), begin(self)))
    return found


FIELDS = list(SPAN_WITHOUT_MESSAGE.names)
"""Message ids count the messages of a rank in the order in which they are simulated, which may differ."""


def spans_of(run):
    return [sorted(spans.array[FIELDS].tolist()) for spans in run.trace.spans]


def check_message_ids(run):
    """Every message has an id of its own, the same at both ends."""
    sent, received = (
        sorted(np.concatenate([spans.of(kind)["message"] for spans in run.trace.spans]).tolist())
        for kind in (Kind.SEND, Kind.RECEIVE)
    )
    assert sent == received
    assert len(set(sent)) == len(sent) == sum(run.messages_sent)


def spans_outside_collectives(run):
    """Sends and receipts of single messages, and pauses. Those of collectives differ in number."""
    found = []
    for spans in run.trace.spans:
        array = spans.array
        single = np.isin(array["nbytes"], MESSAGE_BYTES) & np.isin(array["kind"], (Kind.SEND, Kind.RECEIVE))
        found.append(sorted(array[FIELDS][single | (array["kind"] == Kind.SLEEP)].tolist()))
    return found


def check_equal(whole, singly):
    assert whole.results == singly.results
    assert whole.seconds == singly.seconds
    assert whole.bytes_sent == singly.bytes_sent
    assert whole.messages_sent == singly.messages_sent


# Messages from outside


def check_script(both_ways, seed, network):
    size = (4, 5, 8)[seed % 3]
    actions = draw_script(seed, size)

    async def program(ctx):
        return await run_script(ctx, actions)

    whole, singly = both_ways(
        lambda: pl.run_program(program, pl.Simulated(workers=size, **NETWORKS[network]))
    )
    check_equal(whole, singly)
    assert spans_outside_collectives(whole) == spans_outside_collectives(singly)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("seed", range(12))
def test_random_programs_take_the_same_seconds_and_give_the_same_values(both_ways, seed, network):
    check_script(both_ways, seed, network)


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_many_random_programs_take_the_same_seconds_and_give_the_same_values(both_ways, network):
    for seed in range(12, 200):
        check_script(both_ways, seed, network)


def test_a_message_to_a_waiting_rank_lets_the_ring_fall_back_before_all_have_joined(both_ways, timed):
    async def program(ctx):
        if ctx.rank == 3:
            await ctx.sleep(1e-4)
            await ctx.net.send(1, torch.zeros(9999))
            await ctx.sleep(1e-3)
        data = torch.full((1003,), float(ctx.rank))
        await all_reduce(ctx, data, "ring")
        return ctx.now(), data.sum().item()

    whole, singly = both_ways(lambda: pl.run_program(program, pl.Simulated(workers=4, link=LINK)))
    check_equal(whole, singly)
    assert spans_of(whole) == spans_of(singly)
    assert not timed


@pytest.mark.parametrize("pattern", [all_gather, reduce_scatter])
def test_a_ring_falls_back_after_some_of_its_ranks_have_ended(both_ways, timed, pattern):
    parts = [slice(0, 100_000), *(slice(100_000 + i, 100_001 + i) for i in range(4))]

    async def program(ctx):
        data = torch.randn(100_004, generator=torch.Generator().manual_seed(ctx.rank))
        await pattern(ctx, data, parts=parts)  # two ranks exchange the large part when the others have ended
        own = parts[ctx.rank] if pattern is reduce_scatter else slice(None)
        seen = [ctx.now(), data[own].sum().item()]
        data.fill_(9.0)  # the rank's tensor is its own again
        if ctx.rank == 2:
            for to in (0, 4):
                ctx.start(ctx.net.send(to, torch.ones(500)))
        elif ctx.rank in (0, 4):
            await ctx.net.recv(2)
        return [*seen, ctx.now()]

    whole, singly = both_ways(lambda: pl.run_program(program, pl.Simulated(workers=5, link=LINK)))
    check_equal(whole, singly)
    assert spans_of(whole) == spans_of(singly)
    check_message_ids(whole)
    assert len(timed) == 1


def test_only_the_disturbed_ring_falls_back(both_ways, timed):
    async def program(ctx):
        for step in range(3):
            if step == 1 and ctx.rank == 0:
                ctx.start(ctx.net.send(2, torch.zeros(99_999)))
            await all_reduce(ctx, torch.ones(1000), "ring")
            await ctx.sleep(0.01)
        if ctx.rank == 2:
            await ctx.net.recv(0)
        return ctx.now()

    whole, singly = both_ways(lambda: pl.run_program(program, pl.Simulated(workers=4, link=LINK)))
    check_equal(whole, singly)
    assert len(timed) == 2


def test_rings_that_a_rank_joins_at_the_same_time_send_in_the_order_of_its_calls(both_ways):
    async def program(ctx):
        if ctx.rank != 1:  # rank 1 joins the second ring before rank 0 joins the first one
            await ctx.sleep(1e-4 * (1 + ctx.rank))
            first = ctx.net.split((0, 2, 3, 4))
            handle = ctx.start(all_reduce(first, torch.ones(9000), "ring"))
        await all_reduce(ctx, torch.ones(300), "ring")
        end_s = ctx.now()
        if ctx.rank != 1:
            await handle
        return end_s, ctx.now()

    whole, singly = both_ways(lambda: pl.run_program(program, pl.Simulated(workers=5, link=LINK)))
    check_equal(whole, singly)
    assert spans_of(whole) == spans_of(singly)


def test_rings_of_other_ranks_are_not_disturbed(both_ways, timed):
    async def program(ctx):
        if ctx.rank < 4:
            await all_reduce(ctx.net.split(range(4)), torch.ones(1000), "ring")
        elif ctx.rank == 4:
            await ctx.net.send(5, torch.zeros(999))
        else:
            await ctx.net.recv(4)
        return ctx.now()

    whole, singly = both_ways(lambda: pl.run_program(program, pl.Simulated(workers=6, link=LINK)))
    check_equal(whole, singly)
    assert len(timed) == 1


def test_a_cancelled_part_stops_as_it_does_message_by_message(both_ways):
    async def program(ctx):
        data = torch.ones(1003)
        handle = ctx.start(all_reduce(ctx, data, "ring"))
        await ctx.sleep(2e-4)
        done = handle.done
        handle.cancel()
        return done, data.sum().item()

    whole, singly = both_ways(lambda: pl.run_program(program, pl.Simulated(workers=4, link=LINK)))
    check_equal(whole, singly)


# Callbacks and checkpoints


class Chatty(Strategy):
    """All-reduce, with a message to another rank that disturbs every second ring."""

    replicates = ("worker",)
    in_step = True

    async def worker(self, ctx):
        async for batch in ctx.batches():
            await ctx.model.compute(batch, weight=batch.weight)
            disturbs = batch.step % 2 == 1
            if disturbs:
                ctx.start(ctx.net.send((ctx.rank + 2) % 4, torch.zeros(999)))
            await all_reduce(ctx.net, ctx.model.gradient, "ring")
            if disturbs:
                await ctx.net.recv((ctx.rank + 2) % 4)
            await ctx.model.apply()


class Watching:
    def __init__(self):
        self.steps = []

    def on_step(self, record):
        self.steps.append(record.step)


@pytest.fixture
def trained(both_ways, tmp_path, monkeypatch):
    """Runs with a callback and checkpoints, with whole timing and with single messages."""
    runs = []
    written = []
    commit = Store.commit
    monkeypatch.setattr(
        Store, "commit", lambda self, step, *a, **b: (written.append(step), commit(self, step, *a, **b))[1]
    )

    def train():
        callback, cluster = Watching(), simulated(4, link=LINK, delay=pl.times.Exponential(0.001))
        path = tmp_path / str(len(runs))
        written.clear()
        run = pl.train(
            a_task(), Chatty(), cluster, steps=6, callbacks=[callback], checkpoint=path, checkpoint_every=2
        )
        runs.append(run)
        return run, callback.steps, list(written)

    return both_ways(train)


def test_callbacks_are_called_once_a_step_and_checkpoints_written_once(trained):
    for run, steps, written in trained:
        assert steps == [record.step for record in run.history]
        assert sorted(set(written)) == written


def test_callbacks_and_checkpoints_leave_rings_timed_as_a_whole(trained, timed):
    (whole, *_), (singly, *_) = trained
    assert [record.seconds for record in whole.history] == [record.seconds for record in singly.history]
    assert torch.equal(whole.parameters, singly.parameters)
    assert whole.bytes_sent == singly.bytes_sent
    assert len(whole.trace.spans[0]) < len(singly.trace.spans[0])


# Faults


class Programs(Strategy):
    """Every rank runs one function, and all but the first may die."""

    expendable = ("worker",)

    def __init__(self, function):
        self._function = function

    async def worker(self, ctx):
        return await self._function(ctx)


def outcomes(function, workers, faults, **changes):
    cluster = simulated(workers, faults=faults, **({"link": LINK} | changes))
    made = cluster.run(Job(strategy=Programs(function), roles=("worker",) * workers, seed=0))
    return [(each.result, each.seconds, each.bytes_sent, each.messages_sent, each.lost) for each in made]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("seed", range(8))
def test_ranks_that_die_in_random_programs_are_lost_at_the_same_time(both_ways, seed, network):
    size = (4, 5, 8)[seed % 3]
    actions = draw_script(seed, size)
    faults = [Kill(1 + seed % (size - 1), at=2e-4 * (1 + seed))]

    async def program(ctx):
        return await start_script(ctx, actions, until_s=0.02)

    whole, singly = both_ways(lambda: outcomes(program, size, faults, **NETWORKS[network]))
    assert whole == singly


@pytest.mark.parametrize("at", [1e-4, 2.5e-4, 9e-4], ids=["waiting", "in the ring", "later"])
def test_a_death_disturbs_only_the_ring_that_it_happens_in(both_ways, timed, at):
    async def program(ctx):
        seen = []
        for _ in range(3):
            await ctx.sleep(2e-4 if ctx.rank == 3 else 1e-4)
            data = torch.full((1003,), float(ctx.rank))
            try:
                await all_reduce(ctx, data, "ring")
            except PeerLost as loss:
                return [*seen, ctx.now(), loss.rank, str(loss), data.sum().item()]
            seen += [ctx.now(), data.sum().item()]
            if ctx.rank == 1:
                await ctx.sleep(1)  # holds the later ring until the others have lost the rank
        return seen

    def run():
        timed.clear()
        try:
            return outcomes(program, 4, [Kill(2, at=at)]), len(timed)
        except pl.PacelineError as error:
            return type(error).__name__, len(timed)

    (whole, before), (singly, _) = both_ways(run)
    assert whole == singly
    assert before == (at > 2e-4)
