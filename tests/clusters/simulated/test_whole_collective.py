"""Rings of many simulated ranks are timed as a whole: the same seconds, sums and traffic as message by message."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import paceline as pl
from paceline.clusters.simulated import whole_collective
from paceline.collectives import all_gather, all_reduce, barrier, reduce_scatter
from paceline.context import Context


def uneven_parts(size: int) -> list[slice]:
    """The first half to one rank, nothing to the next, the rest in parts that grow."""
    bounds = [0, 501, *(501 + 502 * i**2 // (size - 2) ** 2 for i in range(size - 1))]
    return [slice(start, stop) for start, stop in pairwise(bounds)]


async def uneven_rings(ctx: Context) -> list[float]:
    """Ranks arrive at random times. Returns the end and the result of each collective."""
    seen: list[float] = []
    for step in range(3):
        for pattern in (all_reduce, reduce_scatter, all_gather):
            await ctx.sleep(float(ctx.rng.exponential(0.01)))
            data = torch.randn(1003, generator=torch.Generator().manual_seed(ctx.rank + step))
            if pattern is all_reduce:
                await all_reduce(ctx, data, "ring")
            else:
                parts = uneven_parts(ctx.net.size)
                again = data.clone()
                await pattern(ctx, data)
                await pattern(ctx, again, parts=parts)
                seen.append(float(again[parts[ctx.rank]].sum()))
            own = data[1003 * ctx.rank // ctx.net.size]
            seen += [ctx.now(), float(own)]
    return seen


async def ring_with_a_barrier(ctx: Context) -> float:
    await all_reduce(ctx, torch.ones(500), "ring")
    await barrier(ctx)  # its messages leave while slower ranks are still in the ring
    return ctx.now()


def cluster(**words: object) -> pl.Simulated:
    return pl.Simulated(workers=40, link=pl.Link("1Gbps", "50us"), **words)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "words", [{}, {"hosts": 4, "inside": pl.Link("100Gbps", "1us")}], ids=["even", "hosts"]
)
def test_a_ring_timed_as_a_whole_equals_message_by_message(words, monkeypatch):
    whole = pl.run_program(uneven_rings, cluster(**words))
    monkeypatch.setattr(whole_collective, "MANY", 10**9)
    singly = pl.run_program(uneven_rings, cluster(**words))
    assert whole.results == singly.results
    assert whole.bytes_sent == singly.bytes_sent
    assert whole.messages_sent == singly.messages_sent
    assert len(whole.trace.spans[0]) < len(singly.trace.spans[0]), "the whole was not timed as a whole"


def test_other_messages_during_a_ring_lead_to_the_exact_way(monkeypatch):
    whole = pl.run_program(ring_with_a_barrier, cluster())
    monkeypatch.setattr(whole_collective, "MANY", 10**9)
    singly = pl.run_program(ring_with_a_barrier, cluster())
    assert whole.results == singly.results


@pytest.mark.slow
def test_ten_thousand_ranks_meet_the_rings_formula():
    async def program(ctx: Context) -> None:
        await all_reduce(ctx, torch.empty(10**6, device="meta"), "ring")

    run = pl.run_program(program, pl.Simulated(workers=10_000, link=pl.Link("10Gbps", "50us")))
    nbytes, p = 4e6, 10_000
    assert run.seconds == pytest.approx(2 * (p - 1) * 50e-6 + 2 * nbytes * (p - 1) / p * 8e-10, rel=0.01)
