"""Measurement of the links between the ranks of a machine.

The ranks of a pair send messages back and forth, all pairs at the same time. As in an all-reduce, the receiver adds
one half of the messages to its tensor, and overwrites the tensor with the other half.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from paceline.collectives import barrier
from paceline.context import Combine, Context, Net, Window
from paceline.costs.calibrated_costs import LinkCosts
from paceline.costs.calibration import SHARED_MEMORY, WINDOW
from paceline.costs.fit import fit_line
from paceline.planner.calibrating.rounds import Rounds, Times, usual_s

SIZES_BYTES = (64, 4 * 2**10, 64 * 2**10, 512 * 2**10, 4 * 2**20)
_STREAM = 32
"""Messages of a stream. They follow each other without a reply."""
_BARRIERS = 10
_ROUND_BYTES = 8 * 2**20
"""Bytes of each size in a round. Few messages of a large size suffice."""
_FEWEST, _MOST = 2, 20
"""Messages of each size in a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProgram:
    """Program of every rank: measure messages between even numbers of ranks."""

    counts: Sequence[int]
    limit_s: float
    has_windows: bool

    async def __call__(self, ctx: Context) -> Times:
        rounds = Rounds(ctx, self.limit_s)
        groups = {count: ctx.net.split(range(count)) for count in self.counts if ctx.rank < count}
        window = None
        if self.has_windows:
            window = ctx.net.window("calibration", rows=ctx.net.size, like=torch.empty(SIZES_BYTES[-1] // 4))
        async for _ in rounds:
            for count in self.counts:
                await barrier(ctx)
                if count in groups:
                    await _measure_group(ctx, groups[count], rounds)
            if window is not None:
                await _measure_window(ctx, window, rounds)
        return rounds.taken


async def _measure_group(ctx: Context, net: Net, rounds: Rounds) -> None:
    for nbytes in SIZES_BYTES:
        rounds.note(f"{net.size}/{nbytes}", await _message_s(ctx, net, nbytes))
    rounds.note(f"{net.size}/stream", await _stream_s(ctx, net))


async def _message_s(ctx: Context, net: Net, nbytes: int) -> float:
    """Return the median seconds of a message to another rank: half of the way there and back."""
    sent, received = torch.zeros(nbytes // 4), torch.zeros(nbytes // 4)
    other, begins = net.rank ^ 1, net.rank % 2 == 0
    ends_s = []
    for number in range(
        min(_MOST, max(_FEWEST, _ROUND_BYTES // nbytes)) + 1
    ):  # the first one waits for the other
        combine: Combine = "sum" if number % 2 else "copy"
        if begins:
            await net.send(other, sent)
        await net.recv(other, received, combine=combine)
        if not begins:
            await net.send(other, sent)
        ends_s.append(ctx.now())
    return statistics.median((after - before) / 2 for before, after in pairwise(ends_s))


async def _stream_s(ctx: Context, net: Net) -> float:
    """Return the mean seconds of a small message in a stream from rank 0 to rank 1."""
    message = torch.zeros(16)
    start_s = ctx.now()
    for _ in range(_STREAM if net.rank < 2 else 0):
        await (net.send(1, message) if net.rank == 0 else net.recv(0, message))
    if net.rank < 2:
        await (net.recv(1, message) if net.rank == 0 else net.send(0, message))
    return (ctx.now() - start_s) / (_STREAM + 1)


async def _measure_window(ctx: Context, window: Window, rounds: Rounds) -> None:
    await window.barrier()
    start_s = ctx.now()
    for _ in range(_BARRIERS):
        await window.barrier()
    rounds.note("barrier", (ctx.now() - start_s) / _BARRIERS)
    into = torch.zeros(SIZES_BYTES[-1] // 4)
    rows = range(ctx.net.size)
    for nbytes in SIZES_BYTES[2:]:
        columns = slice(0, nbytes // 4)
        window.tensor[ctx.net.rank, columns] = 1.0  # what is read was just written by another core
        await window.barrier()
        start_s = ctx.now()
        await window.reduce(columns, rows, into=into[columns])
        rounds.note(f"read/{nbytes}", (ctx.now() - start_s) / (ctx.net.size - 1))


def fitted(kind: str, counts: Sequence[int], results: Sequence[Times]) -> list[LinkCosts]:
    """Fit the links of a kind, for each number of ranks."""
    made = [_fitted(kind, count, results[:count]) for count in counts]
    return made + ([_window(results)] if kind == SHARED_MEMORY else [])


def _fitted(kind: str, count: int, results: Sequence[Times]) -> LinkCosts:
    seconds = [_usual(results, f"{count}/{nbytes}") for nbytes in SIZES_BYTES]
    alone_s, per_byte_s = fit_line(SIZES_BYTES, seconds)
    # A sender in a stream does not wait for arrivals, so the time of a message there is the time at its ports.
    message_s = min(alone_s, usual_s(results[0][f"{count}/stream"]))
    return LinkCosts(
        kind=kind,
        ranks=count,
        latency_s=alone_s - message_s,
        message_s=message_s,
        bytes_per_s=1 / per_byte_s if per_byte_s else float("inf"),
        sizes_bytes=SIZES_BYTES,
        seconds=tuple(seconds),
    )


def _window(results: Sequence[Times]) -> LinkCosts:
    sizes = SIZES_BYTES[2:]
    seconds = [_usual(results, f"read/{nbytes}") for nbytes in sizes]
    per_byte_s = fit_line(sizes, seconds)[1]
    barrier_s = _usual(results, "barrier")
    return LinkCosts(
        kind=WINDOW,
        ranks=len(results),
        latency_s=barrier_s,
        message_s=0.0,
        bytes_per_s=1 / per_byte_s if per_byte_s else float("inf"),
        sizes_bytes=sizes,
        seconds=tuple(each + barrier_s for each in seconds),
    )


def _usual(results: Sequence[Mapping[str, Any]], name: str) -> float:
    """Return the lower quartile over the rounds. The seconds of a round are the mean over the ranks."""
    return usual_s(
        [sum(of_rank) / len(of_rank) for of_rank in zip(*(each[name] for each in results), strict=True)]
    )
