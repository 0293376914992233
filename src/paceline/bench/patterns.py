"""The patterns of the bench: how each is called, its expected result, and its bus bandwidth factor."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from paceline import collectives
from paceline.context import Context
from paceline.schedules.collectives import COLLECTIVES
from paceline.schedules.collectives.collective import Collective

if TYPE_CHECKING:
    from torch import Tensor

    from paceline.bench.known import Known, Piece

ROOT = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One pattern. Before the call, every rank's tensor contains that rank's known numbers."""

    goal: str
    run: Callable[[Context, Tensor, str], Awaitable[Any]]
    expected: Callable[[Known, int], list[Piece]]
    """Expected content of a rank's tensor after the call. The content of other ranges is undefined."""
    bus_factor: Callable[[int], float]
    """Bus bandwidth / algorithm bandwidth, by number of ranks: nccl-tests, doc/PERFORMANCE.md."""
    divided: bool = False
    """Whether the tensor is cut into one equal chunk per rank."""
    sized: bool = True
    rooted: bool = False

    @property
    def algorithms(self) -> tuple[str, ...]:
        return collectives.ALGORITHMS if self.goal == "all-reduce" else tuple(COLLECTIVES[self.goal])

    def collective(self, algorithm: str, workers: int) -> Collective:
        """Return the collective of an algorithm in `COLLECTIVES`."""
        return Collective(self.goal, algorithm, workers, ROOT if self.rooted else None)


def _whole_vector(_: int) -> float:
    return 1.0


def _all_but_own(workers: int) -> float:
    return (workers - 1) / workers


def _there_and_back(workers: int) -> float:
    return 2 * (workers - 1) / workers


async def _broadcast(ctx: Context, tensor: Tensor, algorithm: str) -> None:
    await collectives.broadcast(ctx, tensor, ROOT, algorithm=algorithm)


async def _reduce(ctx: Context, tensor: Tensor, algorithm: str) -> None:
    await collectives.reduce(ctx, tensor, ROOT, algorithm=algorithm)


async def _all_gather(ctx: Context, tensor: Tensor, _: str) -> None:
    await collectives.all_gather(ctx, tensor)


async def _reduce_scatter(ctx: Context, tensor: Tensor, _: str) -> None:
    await collectives.reduce_scatter(ctx, tensor)


async def _all_to_all(ctx: Context, tensor: Tensor, _: str) -> None:
    await collectives.all_to_all(ctx, tensor)


async def _barrier(ctx: Context, _: Tensor, __: str) -> None:
    await collectives.barrier(ctx)


_ALL = (
    Pattern(
        goal="all-reduce",
        run=collectives.all_reduce,
        expected=lambda known, rank: [known.sum()],
        bus_factor=_there_and_back,
    ),
    Pattern(
        goal="broadcast",
        run=_broadcast,
        expected=lambda known, rank: [known.of(ROOT)],
        bus_factor=_whole_vector,
        rooted=True,
    ),
    Pattern(
        goal="reduce",
        run=_reduce,
        expected=lambda known, rank: [known.sum()] if rank == ROOT else [],
        bus_factor=_whole_vector,
        rooted=True,
    ),
    Pattern(
        goal="all-gather",
        run=_all_gather,
        expected=lambda known, rank: [known.of(other, known.chunk(other)) for other in known.ranks],
        bus_factor=_all_but_own,
        divided=True,
    ),
    Pattern(
        goal="reduce-scatter",
        run=_reduce_scatter,
        expected=lambda known, rank: [known.sum(known.chunk(rank))],
        bus_factor=_all_but_own,
        divided=True,
    ),
    Pattern(
        goal="all-to-all",
        run=_all_to_all,
        # After the call, chunk j of rank i is what was chunk i of rank j.
        expected=lambda known, rank: [
            known.of(other, known.chunk(other), taken_from=known.chunk(rank)) for other in known.ranks
        ],
        bus_factor=_all_but_own,
        divided=True,
    ),
    Pattern(
        goal="barrier",
        run=_barrier,
        expected=lambda known, rank: [],
        bus_factor=_whole_vector,
        sized=False,
    ),
)

PATTERNS: Mapping[str, Pattern] = MappingProxyType({pattern.goal: pattern for pattern in _ALL})
