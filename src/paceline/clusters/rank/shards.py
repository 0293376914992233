"""Segments that a rank shares with other ranks. The same in every cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from paceline.clusters.rank.rank import Rank
from paceline.context import ShardedUnit
from paceline.errors import GradientNotFiniteError
from paceline.model.engines.engine import Shards as UnitStore
from paceline.model.replica import Replica


class RankShards:
    """Shards of one rank. It satisfies `paceline.context.Shards`."""

    __slots__ = ("_ctx", "_places", "_replica", "units")

    def __init__(self, ctx: Rank, replica: Replica) -> None:
        self._ctx = ctx
        self._replica = replica
        units = replica.holding.units
        self.units: Sequence[ShardedUnit] = tuple(
            ShardedUnit(unit.group.number, unit.group.users, unit.shards) for unit in units
        )
        self._places = {unit.number: place for place, unit in enumerate(self.units)}

    @property
    def _shards(self) -> UnitStore:
        return self._replica.shared_units

    @contextmanager
    def gather(self, unit: int) -> Iterator[Tensor]:
        place = self._places[unit]
        yield self._shards.gather(place)
        self._shards.refresh(place)

    def release(self, unit: int) -> None:
        self._shards.free(self._places[unit])

    @contextmanager
    def gradient(self, unit: int, into: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        shards, place = self._shards, self._places[unit]
        whole = shards.unit_gradient(place, into)
        if self._replica.not_finite is not None:
            raise GradientNotFiniteError(self._ctx.rank, self._ctx.step, self._replica.not_finite)
        space = shards.gradient_space(place)
        own = whole[self.units[place].parts[self._replica.holding.shard]] if space is None else space
        yield whole, own
        shards.keep_gradient(place, own)

    def gradients_of(self, names: Sequence[str]) -> Sequence[Tensor]:
        return self._shards.gradients_of(names)
