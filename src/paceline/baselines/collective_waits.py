"""Waiting told apart from communicating, where a foreign library does both in one call.

Nobody can have the sum of all gradients before the last rank has handed over its own. The ranks' clocks are one, so
what a rank's call took until then was waiting, for that rank; the rest was communicating.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.trace import Kind, Spans, Trace
from paceline.trace.spans import SPAN, SpanArray

__all__ = ["find_collective_waits"]


def find_collective_waits(trace: Trace) -> Trace:
    """Cut each receive span without a peer, of which every rank has one a step, into a wait and the rest."""
    calls = [_is_call(each.array) for each in trace.spans]
    entered_s = np.stack([each.array["start_s"][call] for each, call in zip(trace.spans, calls, strict=True)])
    last, last_s = entered_s.argmax(axis=0), entered_s.max(axis=0)
    ranks = np.array([each.rank for each in trace.spans])
    spans = [
        Spans(_cut(each.array, call, ranks[last], last_s), each.rank, each.role, each.host)
        for each, call in zip(trace.spans, calls, strict=True)
    ]
    return Trace(spans, trace.seconds)


def _is_call(array: SpanArray) -> NDArray[np.bool_]:
    called: NDArray[np.bool_] = (array["kind"] == Kind.RECEIVE) & (array["peer"] < 0)
    return called


def _cut(
    array: SpanArray, call: NDArray[np.bool_], last: NDArray[np.int64], last_s: NDArray[np.float64]
) -> SpanArray:
    array = array.copy()
    border_s = np.minimum(last_s, array["end_s"][call])
    waits = np.empty(len(border_s), dtype=SPAN)
    waits["kind"], waits["peer"], waits["nbytes"] = Kind.WAIT, last, 0
    waits["start_s"], waits["end_s"], waits["step"] = array["start_s"][call], border_s, array["step"][call]
    array["start_s"][call] = border_s
    # In the order of their ends, which is the order in which a rank records.
    together = np.concatenate([array, waits[waits["end_s"] > waits["start_s"]]])
    return together[np.argsort(together["end_s"], kind="stable")]
