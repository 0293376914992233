"""The passes of a batch, with a point to exchange units between them: by segments, or by the hooks of a whole
model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from paceline.clusters.rank.statistics import StatisticsExchange
from paceline.context import Batch, BoundaryValues, ShardedUnit, UnitEvent
from paceline.model.hooks.batch_norm import StatisticsEvent
from paceline.model.hooks.hooked_pass import HookedPass, PassEvent
from paceline.model.hooks.pass_thread import PassThread

if TYPE_CHECKING:
    from paceline.clusters.rank.stages import RankStages


class _Pass(NamedTuple):
    """A forward or backward pass of one micro-batch through one segment."""

    segment: int
    micro: int
    is_backward: bool
    is_empty: bool


class SegmentPasses:
    """Passes segment by segment, each micro-batch forward and back."""

    def __init__(
        self,
        stages: RankStages[Any],
        units: Sequence[ShardedUnit],
        micros: Sequence[Batch],
        *,
        frees_parameters: bool,
    ) -> None:
        self._stages = stages
        segments = sorted({segment for unit in units for segment in unit.users})
        self._used: dict[int, list[int]] = {segment: [] for segment in segments}
        self._completed: dict[int, list[int]] = {segment: [] for segment in segments}
        for unit in units:
            self._completed[unit.users[0]].append(unit.number)
            for segment in unit.users if frees_parameters else ():
                self._used[segment].append(unit.number)
        self._first = segments[0]
        self._passes = [
            _Pass(segment, micro, is_backward, not part.count)
            for micro, part in enumerate(micros)
            for is_backward in (False, True)
            for segment in (reversed(segments) if is_backward else segments)
        ]
        self._place = 0
        self._given = BoundaryValues()
        self._gradients: Sequence[Tensor] = ()

    def __aiter__(self) -> SegmentPasses:
        return self

    async def __anext__(self) -> UnitEvent:
        passes, place = self._passes, self._place
        if place > len(passes):
            raise StopAsyncIteration
        self._place += 1
        completed: Sequence[int] = ()
        if place:
            done = passes[place - 1]
            await self._run(done)
            completed = self._completed[done.segment] if done.is_backward else ()
        if place == len(passes):
            return UnitEvent(completed=completed, is_backward=True, is_last=True)
        one, following = passes[place], passes[place + 1 : place + 2]
        return UnitEvent(
            self._used[one.segment],
            self._used[following[0].segment] if following else (),
            completed,
            one.is_backward,
        )

    async def _run(self, one: _Pass) -> None:
        if one.segment == self._first and not one.is_backward:
            self._given, self._gradients = BoundaryValues(), ()
        if one.is_empty:
            return
        if one.is_backward:
            self._gradients = await self._stages.backward([one.segment], one.micro, self._gradients)
        else:
            self._given = await self._stages.forward([one.segment], one.micro, self._given)


class HookedPasses:
    """Passes through the whole model. The computation pauses at a hook if a unit is missing or a gradient is
    complete.

    The seconds of a pass are divided among the units by their size. A unit's share is charged after the event that
    first needs the unit. The rest is charged at the end of the micro-batch.
    """

    def __init__(
        self,
        stages: RankStages[Any],
        units: Sequence[ShardedUnit],
        micros: Sequence[Batch],
        run: PassThread[PassEvent],
        *,
        frees_parameters: bool,
        statistics: StatisticsExchange | None = None,
    ) -> None:
        lengths = {unit.number: unit.parts[-1].stop for unit in units}
        total = sum(lengths.values()) or 1
        self._stages = stages
        self._shares: Mapping[int, float] = {number: each / total for number, each in lengths.items()}
        self._micros = micros
        self._run = run
        self._statistics = statistics
        self._frees = frees_parameters
        self._micro = 0
        self._begin_micro()

    def _begin_micro(self) -> None:
        self._is_backward = False
        self._left = {False: 1.0, True: 1.0}  # share of the forward and of the backward pass not charged yet
        self._charged: set[tuple[bool, int]] = set()
        self._next = 0.0 if self._frees else 1.0  # share of the computation until the next event

    def __aiter__(self) -> HookedPasses:
        return self

    async def __anext__(self) -> UnitEvent:
        if self._micro == len(self._micros):
            ended = self._run.advance()
            assert ended is None, "a batch ends with its last micro-batch"
            raise StopAsyncIteration
        event = await self._compute(self._is_backward, self._next, self._run.advance)
        while isinstance(event, StatisticsEvent):
            assert self._statistics is not None
            await self._statistics.complete(event)
            event = await self._compute(self._is_backward, 0.0, self._run.advance)
        assert event is not None, "every micro-batch ends with an event"
        if event.is_last:
            await self._end_micro()
        else:
            self._is_backward = event.is_backward
            news = event.needed if self._frees else event.completed
            self._next = sum(self._shares[unit] for unit in news if self._is_new(unit))
        return event

    def _is_new(self, unit: int) -> bool:
        """Mark a unit as charged. Return whether it was not charged before."""
        key = self._is_backward, unit
        if key in self._charged:
            return False
        self._charged.add(key)
        return True

    async def _compute(
        self, is_backward: bool, share: float, run: Callable[[], PassEvent | None]
    ) -> PassEvent | None:
        micro = self._micros[self._micro]
        self._left[is_backward] -= share
        way = "both" if is_backward else "forward"
        return await self._stages.timed_part(
            way, share if micro.count else 0.0, self._micro, run, lambda: self._run.processor_s
        )

    async def _end_micro(self) -> None:
        for is_backward, left in self._left.items():
            if left > 0 and self._micros[self._micro].count:
                await self._compute(is_backward, left, _nothing)
        if self._micros[self._micro].count:
            self._stages.note_micro_loss(self._micro, self._run.losses[-1])
        self._micro += 1
        self._begin_micro()


def _nothing() -> None:
    return None


@contextmanager
def hooked_passes(
    stages: RankStages[Any],
    units: Sequence[ShardedUnit],
    micros: Sequence[Batch],
    hooked: HookedPass,
    *,
    frees_parameters: bool,
    statistics: StatisticsExchange | None = None,
) -> Iterator[HookedPasses]:
    """Return a context that ends the thread of the passes, also after an error."""
    layers = None if statistics is None else statistics.layers
    with closing(hooked.begin(micros, stages.source, layers)) as run:
        yield HookedPasses(
            stages, units, micros, run, frees_parameters=frees_parameters, statistics=statistics
        )
