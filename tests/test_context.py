"""The interface of strategies is small, and has the same meaning in every world."""

import math
import time
from dataclasses import replace

import pytest
import torch
from orders import makes_rings_in_its_own_order, receives_in_the_other_order
from tasks import a_task, a_wide_task, simulated

import paceline as pl
from paceline.clusters.simulated import simulation
from paceline.clusters.simulated.whole_collective import MANY
from paceline.collectives import barrier
from paceline.context import Context, Handle, Log, Model, Net, Shards, Stages, Strategy, Window
from paceline.costs.measured import Measured
from paceline.strategies import parse
from paceline.strategies.fedavg import FedAvg
from paceline.trace import Kind

MOST = {
    Context: 15,
    Model: 17,
    Stages: 6,
    Shards: 6,
    Net: 10,
    Window: 3,
    Log: 7,
    Handle: 2,
}
MOST_IN_ALL = 66

CLUSTERS = {
    "shared memory": lambda workers: pl.Local(workers=workers, threads=1),
    "tcp": lambda workers: pl.Local(workers=workers, threads=1, link="tcp"),
    "an emulated link": lambda workers: pl.Local(workers=workers, threads=1, link=pl.Link("1Gbps", "1ms")),
    "simulated": simulated,
}


def members(protocol):
    return sorted(name for name in vars(protocol) if not name.startswith("_"))


@pytest.mark.parametrize("protocol", MOST, ids=lambda protocol: protocol.__name__)
def test_each_part_is_small(protocol):
    assert len(members(protocol)) <= MOST[protocol], members(protocol)


def test_the_interface_is_small():
    assert sum(len(members(protocol)) for protocol in MOST) <= MOST_IN_ALL


@pytest.fixture(params=CLUSTERS)
def run_on(request):
    return lambda workers, program: pl.run_program(program, CLUSTERS[request.param](workers)).results


def test_who_asks_first_gets_the_first_message_whenever_the_question_was_made(run_on):
    assert run_on(3, receives_in_the_other_order) == [None, [1.0, 2.0], [1.0, 2.0]]


def test_messages_go_in_the_order_in_which_they_are_awaited_or_started(run_on):
    async def program(ctx):
        if ctx.rank == 0:
            made = [ctx.net.send(1, torch.tensor([float(number)])) for number in range(4)]
            started = [ctx.start(made[3]), ctx.start(made[1])]
            await made[2]
            await made[0]
            for handle in started:
                await handle
            return None
        return [(await ctx.net.recv(0)).tensor.item() for _ in range(4)]

    assert run_on(2, program)[1] == [3.0, 1.0, 2.0, 0.0]


def test_what_is_neither_awaited_nor_started_never_happens(run_on):
    async def program(ctx):
        if ctx.rank == 0:
            ctx.net.send(1, torch.tensor([1.0]))
            await ctx.net.send(1, torch.tensor([2.0]))
            return None
        ctx.net.recv(0)
        return (await ctx.net.recv(0)).tensor.item()

    assert run_on(2, program)[1] == 2.0


def test_a_message_is_of_the_tensor_as_it_is_when_it_begins(run_on):
    async def program(ctx):
        if ctx.rank == 0:
            tensor = torch.tensor([1.0])
            sending = ctx.net.send(1, tensor)
            tensor.fill_(2.0)
            await sending
            return None
        return (await ctx.net.recv(0)).tensor.item()

    assert run_on(2, program)[1] == 2.0


def test_collectives_of_ranks_belong_together_in_the_order_in_which_they_begin(run_on):
    assert run_on(3, makes_rings_in_its_own_order) == [[3.0, 30.0]] * 3


def test_collectives_that_are_timed_as_a_whole_do_so_too():
    assert pl.run_program(makes_rings_in_its_own_order, simulated(MANY)).results == [[MANY, 10 * MANY]] * MANY


@pytest.mark.parametrize("world", ["shared memory", "simulated"])
def test_a_barrier_counts_when_it_is_awaited(world):
    async def program(ctx):
        window = ctx.net.window("board", rows=ctx.net.size, like=torch.zeros(1))
        unused = window.barrier()
        window.tensor[ctx.rank] = 1.0
        await window.barrier()
        return [window.tensor.sum().item(), unused.done]

    assert pl.run_program(program, CLUSTERS[world](3)).results == [[3.0, False]] * 3


class MakesTwice(Strategy):
    """A gradient that is created but not awaited has no effect."""

    async def worker(self, ctx):
        async for batch in ctx.batches():
            ctx.model.compute(batch)
            await ctx.sleep(0.01)
            assert not ctx.model.gradient.any() or batch.step > 0
            await ctx.model.compute(batch, weight=batch.weight)
            await ctx.model.apply()


@pytest.mark.parametrize("world", CLUSTERS)
def test_a_gradient_is_computed_when_it_is_awaited(world):
    run = pl.train(a_task(), MakesTwice(), CLUSTERS[world](1), steps=2)
    assert torch.equal(run.parameters, pl.train(a_task(), "single", simulated(1), steps=2).parameters)
    assert len(run.trace.spans[0].of(0)) == 2


@pytest.mark.parametrize("world", CLUSTERS)
def test_a_gradient_is_the_plain_mean_unless_a_weight_is_given(world):
    class Weighs(Strategy):
        async def worker(self, ctx):
            async for batch in ctx.batches():
                await ctx.model.compute(batch)
                plain = ctx.model.gradient.clone()
                await ctx.model.compute(batch, weight=0.25)
                assert torch.equal(ctx.model.gradient, plain * 0.25)

    pl.train(a_task(), Weighs(), CLUSTERS[world](2), steps=1)


@pytest.mark.parametrize("world", CLUSTERS)
def test_lent_parameters_arrive_as_they_were_when_they_were_sent(world):
    class Lends(Strategy):
        async def worker(self, ctx):
            ctx.model.place(parameters="lent")
            async for batch in ctx.batches():
                await ctx.model.compute(batch)
                if ctx.rank == 0:
                    ctx.start(ctx.net.send(1, ctx.model.parameters))
                    await ctx.model.apply()
                    await ctx.net.send(1, ctx.model.parameters[:0], tag=1)
                else:
                    await ctx.net.recv(0, tag=1)  # the parameters have been updated by now
                    assert torch.equal((await ctx.net.recv(0)).tensor, ctx.model.parameters)

    pl.train(a_wide_task(), Lends(), CLUSTERS[world](2), steps=1)


@pytest.mark.parametrize("link", ["shared-memory", "tcp"])
def test_what_a_strategy_prepares_is_ready_on_every_worker_before_the_clock_begins(link):
    prepared = []  # on each rank its own

    class Prepares(Strategy):
        def prepare(self, ctx):
            time.sleep(0.2 * ctx.rank)  # a rank that waits for a later rank does not wait on the clock
            prepared.append(ctx.now())

        async def worker(self, ctx):
            assert prepared == [-math.inf]
            async for batch in ctx.batches():
                await ctx.model.compute(batch)
                await barrier(ctx)

    run = pl.train(a_task(), Prepares(), pl.Local(workers=2, threads=1, link=link), steps=1)
    assert run.seconds > 0
    assert all(spans.array["start_s"].min() >= 0 for spans in run.trace.spans)


@pytest.mark.parametrize(
    "spec", ["layers", "pipeline", "tensor", "zero:stage=2", "zero:stage=3", "hybrid:pipeline=2"]
)
def test_strategies_that_cut_the_model_do_so_when_they_are_asked_to_prepare(spec):
    strategy = parse(spec)

    class OnlyPrepares(Strategy):
        async def worker(self, ctx):
            strategy.prepare(ctx)
            assert ctx.model.stages.segments
            async for _ in ctx.rounds():
                pass

    pl.train(a_task(), OnlyPrepares(), simulated(2), steps=1)


def test_who_sends_in_a_part_of_the_net_is_called_by_its_position(run_on):
    async def program(ctx):
        if ctx.rank == 1:
            return None
        net = ctx.net.split((2, 0))
        if net.rank == 0:
            await net.send(1, torch.tensor([5.0]), tag=3, header=(7,))
            return None
        message = await net.recv(0, tag=3)
        return [message.source, message.tag, message.tensor.item(), *message.header]

    assert run_on(3, program)[0] == [0, 3, 5.0, 7]


def test_a_message_of_one_net_is_not_taken_for_one_of_another(run_on):
    async def program(ctx):
        if ctx.rank == 2:
            return None
        pair = ctx.net.split((0, 1))
        if ctx.rank == 0:
            await ctx.net.send(1, torch.tensor([1.0]), tag=4)
            await pair.send(1, torch.tensor([2.0]), tag=4)
            return None
        in_pair = (await pair.recv(0, tag=4)).tensor.item()
        return [in_pair, (await ctx.net.recv(0, tag=4)).tensor.item()]

    assert run_on(3, program)[1] == [2.0, 1.0]


@pytest.mark.parametrize("world", CLUSTERS)
def test_micro_batches_add_up_to_their_batch(world):
    class InParts(Strategy):
        async def worker(self, ctx):
            async for batch in ctx.batches():
                for start in range(0, batch.count, 3):
                    micro = replace(batch, start=start, count=min(3, batch.count - start))
                    await ctx.model.compute(micro, weight=micro.weight, accumulate=start > 0)
                await ctx.model.apply()

    whole = pl.train(a_task(), "single", simulated(1), steps=3).parameters
    parts = pl.train(a_task(), InParts(), CLUSTERS[world](1), steps=3).parameters
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-14)


def test_a_client_costs_what_it_computes_where_gradients_are_measured(monkeypatch):
    def parts(targets, clients, seed):
        return [range(2), range(2, 24)]

    price = Measured(fixed_s=0.5, per_sample_s=0.25)
    monkeypatch.setattr(simulation, "GradientTimer", lambda *_: price)
    run = pl.train(a_task(), FedAvg(partition=parts, batch=0), pl.Simulated(workers=2, threads=1), steps=2)
    spans = [run.trace.spans[rank].of(Kind.COMPUTE) for rank in range(2)]
    assert [(each["end_s"] - each["start_s"]).tolist() for each in spans] == [
        pytest.approx([1.0] * 2),
        pytest.approx([6.0] * 2),
    ]
