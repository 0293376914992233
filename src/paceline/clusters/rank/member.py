"""The context of a program in a generation without some of the first ranks. Ranks are positions among the members."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from paceline.context import Batch, Context, Handle

if TYPE_CHECKING:
    from paceline.clusters.rank.rank import Rank

T = TypeVar("T")


class Member:
    """It satisfies `paceline.context.Context`."""

    def __init__(self, rank: Rank, members: Sequence[int]) -> None:
        self._context = cast(Context, rank)
        workers = sum(member < rank.job.workers for member in members)
        self.rank = members.index(rank.rank)
        self.role = rank.role
        self.workers: Sequence[int] = range(workers)
        self.servers: Sequence[int] = range(workers, len(members))
        self.rng = rank.rng
        self.model: Any = rank.model
        self.net: Any = rank.net
        self.log = rank.log

    def rounds(self) -> AsyncIterator[int]:
        return self._context.rounds()

    def batches(self, own: Iterator[Batch] | None = None, *, endless: bool = False) -> AsyncIterator[Batch]:
        return self._context.batches(own, endless=endless)

    @property
    def batch_of(self) -> Callable[[int, int], Batch]:
        return self._context.batch_of

    @property
    def targets(self) -> Sequence[Any]:
        return self._context.targets

    def start(self, work: Awaitable[T]) -> Handle[T]:
        return self._context.start(work)

    def first(self, handles: Sequence[Handle[Any]]) -> Awaitable[Handle[Any]]:
        return self._context.first(handles)

    def now(self) -> float:
        return self._context.now()

    def sleep(self, seconds: float) -> Awaitable[None]:
        return self._context.sleep(seconds)
