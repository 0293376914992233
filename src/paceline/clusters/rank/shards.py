"""A rank's segments that it shares with others, in every world alike."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from paceline.clusters.rank.rank import Rank
from paceline.context import Segment
from paceline.errors import GradientNotFiniteError
from paceline.replica.pieces.blank import BlankSharded
from paceline.replica.pieces.sharded import ShardedReplica

__all__ = ["RankShards"]


class RankShards:
    """It satisfies `paceline.context.Shards`."""

    __slots__ = ("_ctx", "_place", "_replica", "_used")

    def __init__(
        self, ctx: Rank, replica: ShardedReplica | BlankSharded, segments: Sequence[Segment]
    ) -> None:
        self._ctx = ctx
        self._replica = replica
        self._place = {number: place for place, number in enumerate(replica.held)}
        homes = {
            name: number
            for number, unit in zip(replica.held, replica.units, strict=True)
            for name in unit.layout.names
        }
        self._used = {
            number: list(
                dict.fromkeys(
                    [number, *(homes[name] for name in segments[number].parameters if name in homes)]
                )
            )
            for number in replica.held
        }

    def used_by(self, segment: int) -> Sequence[int]:
        return self._used[segment]

    def parts(self, segment: int) -> Sequence[slice]:
        return self._replica.units[self._place[segment]].shards

    def gather(self, segment: int) -> Tensor:
        return self._replica.gather(self._place[segment])

    def ready(self, segment: int) -> None:
        self._replica.refresh(self._place[segment])

    def release(self, segment: int) -> None:
        self._replica.let_go(self._place[segment])

    def gradient(self, segment: int, into: Tensor | None = None) -> Tensor:
        flat = self._replica.whole_gradient(self._place[segment], into)
        if self._replica.not_finite is not None:
            raise GradientNotFiniteError(self._ctx.rank, self._ctx.step, self._replica.not_finite)
        return flat

    def gradients_of(self, names: Sequence[str]) -> Sequence[Tensor]:
        return self._replica.gradients_of(names)

    def keep(self, segment: int, own: Tensor) -> None:
        self._replica.keep_gradient(self._place[segment], own)
