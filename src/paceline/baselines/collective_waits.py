"""Separates waiting from communication where a library does both in one call.

An all-reduce cannot complete before the last rank has entered it. The ranks share one clock. So the part of a call
before that moment is waiting, and the rest is communication.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.trace import Kind, Spans, Trace
from paceline.trace.spans import SPAN, SpanArray, meeting_id


def find_collective_waits(trace: Trace) -> Trace:
    """Split each receive span without a peer into a wait and the rest. Every rank has one such span in each step."""
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
    array["message"][call] = [meeting_id(0, visit) for visit in range(int(call.sum()))]
    border_s = np.minimum(last_s, array["end_s"][call])
    waits = np.empty(len(border_s), dtype=SPAN)
    waits["kind"], waits["peer"], waits["nbytes"] = Kind.WAIT, last, 0
    waits["start_s"], waits["end_s"] = array["start_s"][call], border_s
    for name in ("step", "message"):
        waits[name] = array[name][call]
    array["start_s"][call] = border_s
    # Sorted by end, which is the order in which a rank records spans.
    together = np.concatenate([array, waits[waits["end_s"] > waits["start_s"]]])
    return together[np.argsort(together["end_s"], kind="stable")]
