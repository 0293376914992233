"""What passes through the segments of a model take on this machine: measured, where nobody gives their seconds.

Segments differ in what they do for each operation, and a micro-batch of 4 samples takes more than half of one of 8. So
each pass of each segment is measured, with the samples that it will have.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from torch import Tensor

from paceline.chance import kept
from paceline.context import Batch, Crossing
from paceline.replica.pieces.cut import Cut
from paceline.replica.pieces.part import PartReplica
from paceline.replica.replica import Replica
from paceline.replica.samples import Source

__all__ = ["PassTimer"]

_ROUNDS = 4
_IN_FLIGHT = 3
"""Micro-batches whose activations are kept at a time: with one alone, they would still be in a core's cache."""

P = ParamSpec("P")
T = TypeVar("T")


class PassTimer:
    """Measures when it is first asked, all segments at once."""

    def __init__(self, make: Callable[[], Replica], source: Source) -> None:
        self._make = make
        self._source = source
        self._known: dict[Any, dict[tuple[str, int], float]] = {}

    def seconds(self, cut: Cut, way: str, segment: int, batch: Batch) -> float:
        """Of a forward pass, or a backward one ("both", or its parts "inputs" and "weights")."""
        known = self._known.setdefault((cut.bounds, batch.count), {})
        if (way, segment) not in known:
            with kept():
                known |= _Measurement(self._make(), cut, batch, self._source).take(
                    way in ("inputs", "weights")
                )
        return known[way, segment]


class _Measurement:
    """Of one cut and size of micro-batch."""

    def __init__(self, whole: Replica, cut: Cut, batch: Batch, source: Source) -> None:
        self._segments = range(len(cut.segments))
        self._part = PartReplica(whole, cut, self._segments, keeps_whole=False)
        self._batch = batch
        self._source = source
        self._taken: dict[tuple[str, int], list[float]] = {}

    def take(self, parted: bool) -> dict[tuple[str, int], float]:
        """Seconds of each pass of each segment; `parted`: of backward passes in two parts."""
        self._part.begin_batch()
        for number in range(_ROUNDS + 1):
            for micro in range(_IN_FLIGHT):
                self._go_forward(micro)
            for micro in range(_IN_FLIGHT):
                self._go_back(micro, parted)
            if number == 0:  # the first finds nothing where it will be
                self._taken.clear()
        return {which: statistics.median(taken_s) for which, taken_s in self._taken.items()}

    def _go_forward(self, micro: int) -> None:
        given, forward = Crossing(), self._part.forward
        for segment in self._segments:
            made = self._time("forward", segment, forward, segment, self._batch, micro, self._source, given)
            given = made if isinstance(made, Crossing) else given

    def _go_back(self, micro: int, parted: bool) -> None:
        part = self._part
        gradients: Sequence[Tensor] = ()
        for segment in reversed(self._segments):
            if parted:
                gradients = self._time("inputs", segment, part.backward_inputs, segment, micro, gradients)
                self._time("weights", segment, part.backward_weights, segment, micro)
            else:
                gradients = self._time("both", segment, part.backward, segment, micro, gradients)

    def _time(self, way: str, segment: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        start_s = time.perf_counter()
        made = work(*args, **kwargs)
        self._taken.setdefault((way, segment), []).append(time.perf_counter() - start_s)
        return made
