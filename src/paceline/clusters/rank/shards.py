"""A rank's segments that it shares with others, in every world alike."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from paceline.clusters.rank.rank import Rank
from paceline.errors import GradientNotFiniteError
from paceline.replica.pieces.blank import BlankSharded
from paceline.replica.pieces.sharded import ShardedReplica

__all__ = ["RankShards"]


class RankShards:
    """It satisfies `paceline.context.Shards`."""

    __slots__ = ("_completed", "_ctx", "_places", "_replica", "_used", "units")

    def __init__(self, ctx: Rank, replica: ShardedReplica | BlankSharded) -> None:
        self._ctx = ctx
        self._replica = replica
        homes = [unit.home for unit in replica.units]
        self._places = {home.number: place for place, home in enumerate(homes)}
        self.units: Sequence[int] = tuple(self._places)
        self._used = {n: [home.number for home in homes if n in home.users] for n in replica.held}
        self._completed = {n: [home.number for home in homes if n == home.users[0]] for n in replica.held}

    def used_by(self, segment: int) -> Sequence[int]:
        return self._used[segment]

    def completed_by(self, segment: int) -> Sequence[int]:
        return self._completed[segment]

    def parts(self, unit: int) -> Sequence[slice]:
        return self._replica.units[self._places[unit]].shards

    def gather(self, unit: int) -> Tensor:
        return self._replica.gather(self._places[unit])

    def ready(self, unit: int) -> None:
        self._replica.refresh(self._places[unit])

    def release(self, unit: int) -> None:
        self._replica.let_go(self._places[unit])

    def gradient(self, unit: int, into: Tensor | None = None) -> Tensor:
        flat = self._replica.whole_gradient(self._places[unit], into)
        if self._replica.not_finite is not None:
            raise GradientNotFiniteError(self._ctx.rank, self._ctx.step, self._replica.not_finite)
        return flat

    def gradients_of(self, names: Sequence[str]) -> Sequence[Tensor]:
        return self._replica.gradients_of(names)

    def space(self, unit: int) -> Tensor | None:
        return self._replica.gradient_space(self._places[unit])

    def keep(self, unit: int, own: Tensor) -> None:
        self._replica.keep_gradient(self._places[unit], own)
