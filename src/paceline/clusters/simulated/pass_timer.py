"""Measure how long passes through the segments of a model take on this machine. Used if no compute times are given.

Segments differ in their time per operation, and a micro-batch of 4 samples takes more than half the time of 8. So each
pass of each segment is measured with its actual number of samples.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from torch import Tensor

from paceline.context import Batch, BoundaryValues
from paceline.data.samples import Source
from paceline.model.cutting.cut import Cut
from paceline.model.replica import Replica
from paceline.system import interrupts
from paceline.system.seeding import rng_preserved

_ROUNDS = 4
_IN_FLIGHT = 3
"""Micro-batches with activations in memory at the same time. With only one micro-batch, activations would stay in
the cache of a core."""

P = ParamSpec("P")
T = TypeVar("T")


class PassTimer:
    """Timer that measures all segments together on first use."""

    def __init__(self, make: Callable[[], Replica], source: Source) -> None:
        self._make = make
        self._source = source
        self._known: dict[Any, dict[tuple[str, int], float]] = {}

    def seconds(self, cut: Cut, way: str, segment: int, batch: Batch) -> float:
        """Return the seconds of a forward pass, or of a backward pass ("both", or its parts "inputs" and
        "weights")."""
        known = self._known.setdefault((cut.bounds, batch.count), {})
        if (way, segment) not in known:
            with rng_preserved():
                known |= _Measurement(self._make(), cut, batch, self._source).take(
                    way in ("inputs", "weights")
                )
        return known[way, segment]


class _Measurement:
    """Measurement of one cut with one micro-batch size."""

    def __init__(self, whole: Replica, cut: Cut, batch: Batch, source: Source) -> None:
        self._segments = range(len(cut.segments))
        self._part = whole.part(cut, self._segments)
        self._batch = batch
        self._source = source
        self._taken: dict[tuple[str, int], list[float]] = {}

    def take(self, parted: bool) -> dict[tuple[str, int], float]:
        """Return the seconds of each pass of each segment. With `parted`, backward passes are in two parts."""
        self._part.begin_batch()
        for number in range(_ROUNDS + 1):
            interrupts.safe_point()
            for micro in range(_IN_FLIGHT):
                self._go_forward(micro)
            for micro in range(_IN_FLIGHT):
                self._go_back(micro, parted)
            if number == 0:  # the first round has cold caches
                self._taken.clear()
        return {which: statistics.median(taken_s) for which, taken_s in self._taken.items()}

    def _go_forward(self, micro: int) -> None:
        given, forward = BoundaryValues(), self._part.forward
        for segment in self._segments:
            made = self._time("forward", segment, forward, segment, self._batch, micro, self._source, given)
            given = made if isinstance(made, BoundaryValues) else given

    def _go_back(self, micro: int, parted: bool) -> None:
        part = self._part
        gradients: Sequence[Tensor] = ()
        for segment in reversed(self._segments):
            if parted:
                gradients = self._time("inputs", segment, part.backward, segment, micro, gradients, "inputs")
                self._time("weights", segment, part.backward, segment, micro, (), "weights")
            else:
                gradients = self._time("both", segment, part.backward, segment, micro, gradients)

    def _time(self, way: str, segment: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        start_s = time.perf_counter()
        made = work(*args, **kwargs)
        self._taken.setdefault((way, segment), []).append(time.perf_counter() - start_s)
        return made
