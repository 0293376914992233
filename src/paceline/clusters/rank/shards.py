"""Segments that a rank shares with other ranks. The same in every cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor

from paceline.clusters.rank.rank import Rank
from paceline.clusters.rank.unit_passes import SegmentPasses, hooked_passes
from paceline.context import Batch, ShardedUnit, UnitEvent
from paceline.errors import GradientNotFiniteError
from paceline.model.engines.engine import Shards as UnitStore
from paceline.model.replica import Replica

if TYPE_CHECKING:
    from paceline.clusters.rank.stages import RankStages


class RankShards:
    """Shards of one rank. It satisfies `paceline.context.Shards`."""

    __slots__ = ("_ctx", "_places", "_replica", "_stages", "units")

    def __init__(self, ctx: Rank, stages: RankStages[Any], replica: Replica) -> None:
        self._ctx = ctx
        self._stages = stages
        self._replica = replica
        units = replica.holding.units
        self.units: Sequence[ShardedUnit] = tuple(
            ShardedUnit(unit.group.number, unit.group.users, unit.shards) for unit in units
        )
        self._places = {unit.number: place for place, unit in enumerate(self.units)}

    @contextmanager
    def passes(
        self, batch: Batch, parts: int | None = None, *, widest: int | None = None
    ) -> Iterator[AsyncIterator[UnitEvent]]:
        hooked, frees = self._replica.engine.hooked, self._replica.holding.frees_parameters
        with self._stages.batch(batch, parts, widest=widest) as micros:
            if hooked is None:
                yield SegmentPasses(self._stages, self.units, micros, frees_parameters=frees)
                return
            with hooked_passes(
                self._stages,
                self.units,
                micros,
                hooked,
                frees_parameters=frees,
                statistics=self._ctx.model.statistics,
            ) as events:
                yield events

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
