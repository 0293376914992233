"""Local workers with emulated slow links."""

import pytest
import torch
from conformance.cases import STEPS, SYNCHRONOUS, one_in
from overlap import SendsAsItComputes
from processes import PATIENCE_S
from refusals import has, refused, unknown
from tasks import a_task, simulated

import paceline as pl
from paceline.collectives import all_reduce, broadcast
from paceline.context import ANY
from paceline.trace import Kind

QUICK = pl.Link(bandwidth="1Gbps", latency="1ms")
SLOW = pl.Link(bandwidth="100Mbps", latency="5ms")
PASSING_MESSAGES = [spec for spec in SYNCHRONOUS if "shared" not in spec]
BEGINNING_S = 0.2  # by then every worker has begun


def run_on(workers, program, link=QUICK, **changes):
    return pl.run_program(program, pl.Local(workers=workers, link=link, **changes)).results


# Results


@pytest.mark.parametrize("spec", one_in(5, zip(PASSING_MESSAGES)))
def test_an_emulated_link_does_not_change_a_bit_of_the_weights(spec):
    task = a_task()
    plain = pl.train(task, spec, simulated(3), steps=STEPS)
    paced = pl.train(task, spec, pl.Local(workers=3, link=QUICK, threads=1), steps=STEPS)
    assert torch.equal(paced.parameters, plain.parameters)
    assert [record.loss for record in paced.history] == [record.loss for record in plain.history]
    assert (paced.bytes_sent, paced.messages_sent) == (plain.bytes_sent, plain.messages_sent)


@pytest.mark.parametrize("spec", ["async", "k-sync:k=2", "ssp:staleness=1"])
def test_strategies_for_uneven_workers_run_on_an_emulated_link(spec):
    run = pl.train(a_task(), spec, pl.Local(workers=3, link=QUICK, slow={2: 3.0}), steps=6)
    assert run.steps == 6


def test_all_reduce_passes_messages_of_its_own_accord():
    run = pl.train(a_task(), "all-reduce", pl.Local(workers=3, link=QUICK), steps=2)
    assert min(run.messages_sent) > 0


# Times


def timed(collective):
    async def program(ctx):
        tensor = torch.ones(250_000) * ctx.rank  # a megabyte
        await ctx.sleep(BEGINNING_S - ctx.now())
        start_s = ctx.now()
        await collective(ctx, tensor)
        return [start_s, ctx.now(), tensor]

    return program


async def ring(ctx, tensor):
    await all_reduce(ctx, tensor, "ring")


async def flat_broadcast(ctx, tensor):
    await broadcast(ctx, tensor, 2, algorithm="flat")


@pytest.mark.parametrize("collective", [ring, flat_broadcast])
def test_a_collective_takes_no_less_than_the_simulation_predicts(collective):
    seconds, tensors = [], []
    for cluster in (pl.Local(workers=4, link=SLOW), simulated(4, link=SLOW)):
        results = pl.run_program(timed(collective), cluster).results
        seconds.append(max(end for _, end, _ in results) - min(start for start, _, _ in results))
        tensors.append(torch.stack([tensor for _, _, tensor in results]))
    measured_s, predicted_s = seconds
    assert measured_s >= 0.99 * predicted_s
    assert torch.equal(*tensors)


def test_the_trace_shows_the_ports():
    async def program(ctx):
        await ctx.sleep(BEGINNING_S - ctx.now())
        if ctx.rank:
            await ctx.net.send(0, torch.zeros(25_000))  # 8 ms
        else:
            await ctx.net.recv(1)
            await ctx.net.recv(2)

    trace = pl.run_program(program, pl.Local(workers=3, link=SLOW)).trace
    seconds = [[], []]
    for spans in trace.spans:
        for kind, found in zip((Kind.SEND, Kind.RECEIVE), seconds, strict=True):
            found += [float(span["end_s"] - span["start_s"]) for span in spans.of(kind)]
    assert seconds[0] == pytest.approx([0.008, 0.008])
    began_s = min(float(trace.spans[rank].of(Kind.SEND)[0]["start_s"]) for rank in (1, 2))
    ended_s = max(float(span["end_s"]) for span in trace.spans[0].of(Kind.RECEIVE))
    assert ended_s >= began_s + 0.005 + 2 * 0.008 - 1e-6, "the port in carries one at a time"
    sent = trace.spans[1].of(Kind.SEND)[0]
    # On a busy machine rank 0 may arrive late, and need not wait.
    waits = [span for span in trace.spans[0].of(Kind.WAIT) if span["peer"] == 1]
    assert all(wait["end_s"] >= sent["start_s"] + 0.005 - 1e-6 for wait in waits)
    assert [spans.host for spans in trace.spans] == [0, 1, 2]


def test_what_a_rank_said_before_it_ended_still_arrives():
    async def program(ctx):
        if ctx.rank:
            await ctx.net.send(0, torch.tensor([ctx.rank]))
            return None
        waiting = [ctx.start(ctx.net.recv(1)), ctx.start(ctx.net.recv(2))]
        await ctx.first(waiting)
        return sorted([(await handle).source for handle in waiting])

    assert run_on(3, program, pl.Link(latency="700ms"))[0] == [1, 2]


def test_a_message_under_way_may_take_longer_than_the_deadline(tmp_path):
    sent = tmp_path / "sent"

    async def program(ctx):
        if ctx.rank:
            handle = ctx.start(ctx.net.send(0, torch.zeros(25_000)))
            sent.touch()
            await handle
            return None
        # No rank waits for a rank that has not begun, because that wait has another deadline.
        while not sent.exists():
            await ctx.sleep(0.001)
        return (await ctx.net.recv(ANY)).source

    assert run_on(2, program, pl.Link(bandwidth="1Mbps"), deadline_s=0.3)[0] == 1  # 0.8 s


def test_a_large_message_goes_on_while_its_sender_computes():
    cluster = pl.Local(workers=2, link=pl.Link("10Gbps"), delay={0: pl.times.Constant(PATIENCE_S)})
    run = pl.train(a_task(), SendsAsItComputes(500_000), cluster, steps=1)
    assert len(run.trace.spans[0].of(Kind.CANCELLED)) == 1


# Bad input


@pytest.mark.parametrize("link", [None, 3, {"bandwidth": "1Gbps"}, pl.Link])
def test_a_link_that_is_none_is_refused(link):
    with refused("link", link, bound=has("shared-memory", "tcp", "pl.Link")):
        pl.Local(link=link)


def test_a_name_that_is_no_link_is_answered_with_what_there_is():
    with unknown("link", "1Gbps", bound=has("pl.Link")):
        pl.Local(link="1Gbps")


def test_ranks_of_an_emulated_link_are_hosts_of_their_own():
    async def program(ctx):
        own = ctx.net.split((ctx.rank,)).window("own", rows=1, like=torch.zeros(2))
        return [list(ctx.net.hosts), ctx.net.shares_memory, own.tensor.sum().item()]

    assert run_on(2, program) == [[[0, 1], False, 0.0]] * 2


@pytest.mark.parametrize(("algorithm", "argument"), [("shared", "window"), ("native", "algorithm")])
def test_what_would_go_around_the_link_is_refused_with_the_remedy(algorithm, argument):
    async def program(ctx):
        await all_reduce(ctx, torch.ones(4), algorithm)

    with refused(argument, remedy=has('link="shared-memory"')):
        run_on(2, program)


def test_a_cluster_says_that_its_link_is_emulated():
    assert str(pl.Local(workers=2, link=SLOW)) == f"2 local workers (emulated: link {SLOW})"
