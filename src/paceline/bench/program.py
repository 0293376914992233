"""The program of every rank in a bench: the same calls in the same order, each verified, and timed after a barrier."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline.bench.baseline import Gloo
from paceline.bench.known import Known, Piece, fill, find_wrong
from paceline.bench.spec import Spec, warm_up
from paceline.collectives import barrier
from paceline.context import Context

PING_PONG = "ping-pong"

Call = Callable[[Context, Tensor], Awaitable[Tensor]]
"""Executes the pattern and returns the tensor with the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The program that every rank of a bench runs."""

    spec: Spec
    store_path: str
    """File with which Gloo's ranks find each other."""
    progress_path: str | None = None
    """Pipe of the driver that receives one byte at the start of each size; None for no progress messages."""

    async def __call__(self, ctx: Context) -> dict[str, Any]:
        """Return start and end of each timed call on this rank, by size and case; and the wrong results."""
        calls = self._calls(ctx)
        sizes: list[dict[str, list[list[float]]]] = []
        mistakes: list[list[Any]] = []
        with contextlib.ExitStack() as stack:
            announce = self._announcer(ctx, stack)
            for place, length in enumerate(self.spec.lengths):
                announce()
                bench = _Size(self.spec, ctx, length)
                sizes.append(await bench.run(calls))
                mistakes += [[place, *mistake] for mistake in bench.mistakes]
        return {"sizes": sizes, "mistakes": mistakes}

    def _calls(self, ctx: Context) -> dict[str, Call]:
        pattern, algorithms = self.spec.kind, self.spec.algorithms

        def ours(algorithm: str) -> Call:
            async def call(ctx: Context, tensor: Tensor) -> Tensor:
                await pattern.run(ctx, tensor, algorithm)
                return tensor

            return call

        calls = {name: ours(name) for name in algorithms}
        if self.spec.baseline is not None and self.spec.baseline not in calls:
            calls[self.spec.baseline] = Gloo(self.spec.pattern, self.store_path).run
        if pattern.sized and len(ctx.workers) > 1:
            calls[PING_PONG] = _ping_pong
        return calls

    def _announcer(self, ctx: Context, stack: contextlib.ExitStack) -> Callable[[], object]:
        if self.progress_path is None or ctx.rank != 0:
            return lambda: None
        try:
            pipe = os.open(self.progress_path, os.O_WRONLY)
        except OSError:  # no /proc here: run without progress messages
            return lambda: None
        stack.callback(os.close, pipe)
        return lambda: os.write(pipe, b".")


class _Size:
    """All calls at one size, on one tensor."""

    def __init__(self, spec: Spec, ctx: Context, length: int) -> None:
        self._ctx = ctx
        self._spec = spec
        self._tensor = torch.empty(length, dtype=getattr(torch, spec.dtype))
        self._calls = 0
        self.mistakes: list[tuple[str, int, str]] = []
        """Case, number of the call, and description of the error."""

    async def run(self, calls: dict[str, Call]) -> dict[str, list[list[float]]]:
        """Call each case in turn, repeatedly, so that disturbances of the machine affect all cases alike."""
        length = len(self._tensor)
        times: dict[str, list[list[float]]] = {name: [] for name in calls}
        # No barrier before warm-up calls: a collective must be correct without one.
        for _ in range(warm_up(length, self._spec.itemsize)):
            for name, call in calls.items():
                await self._checked(name, call, apart=False)
        for _ in range(self._spec.repeats(length)):
            for name, call in calls.items():
                times[name].append(await self._checked(name, call, apart=True))
        return times

    async def _checked(self, name: str, call: Call, *, apart: bool) -> list[float]:
        """Return start and end of one call, and verify its result afterwards."""
        ctx, tensor = self._ctx, self._tensor
        known = Known(len(ctx.workers), len(tensor), tensor.dtype, self._calls)
        self._calls += 1
        fill(tensor, known.of(ctx.rank))
        if apart:
            await barrier(ctx)
        start_s = ctx.now()
        result = await call(ctx, tensor)
        end_s = ctx.now()
        self._check(name, result, self._expected(name, known))
        return [start_s, end_s]

    def _expected(self, name: str, known: Known) -> list[Piece]:
        if name == PING_PONG:
            return [known.of(0)] if self._ctx.rank < 2 else []
        return self._spec.kind.expected(known, self._ctx.rank)

    def _check(self, name: str, result: Tensor, expected: list[Piece]) -> None:
        for piece in expected:
            if wrong := find_wrong(result, piece):
                index, value, should_be = wrong
                what = f"element {index} of rank {self._ctx.rank} is {value:g}, but must be {should_be:g}"
                self.mistakes.append((name, self._calls, what))
                return


async def _ping_pong(ctx: Context, tensor: Tensor) -> Tensor:
    """Send from rank 0 to rank 1 and back. The other ranks do nothing."""
    if ctx.rank == 0:
        await ctx.net.send(1, tensor)
        await ctx.net.recv(1, tensor)
    elif ctx.rank == 1:
        await ctx.net.recv(0, tensor)
        await ctx.net.send(0, tensor)
    return tensor
