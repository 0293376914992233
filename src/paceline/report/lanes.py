"""The spans of a run, packed for the page's timeline.

Columns of integers, concatenated, compressed and base64-encoded: about 10 bytes per span instead of the 60 of JSON.
`assets/spans.js` decodes them: change both files together.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.trace import SPAN, Summary, Trace
from paceline.trace.spans import SpanArray
from paceline.trace.summary import PART_NAMES

_MOST_TICKS = 2**32 - 1
_MOST_SPANS = 400_000
"""Limit for all runs of a page together: 5 MB or less."""


def span_limits(counts: Sequence[int], most: int = _MOST_SPANS) -> list[int]:
    """Return the number of spans of each run that fit.

    Large runs share the spans that small runs leave unused, in equal parts.
    """
    limits = [0] * len(counts)
    for place, run in enumerate(sorted(range(len(counts)), key=counts.__getitem__)):
        limits[run] = min(counts[run], most // (len(counts) - place))
        most -= limits[run]
    return limits


def pack_lanes(
    trace: Trace, summary: Summary, ranks: Sequence[int], limit: int, holds: Sequence[str] = ()
) -> dict[str, Any]:
    """Pack the lanes of these ranks. If they have more than `limit` spans, include those from the start of the run.

    `holds` describes the part of the model on each rank.
    """
    shown = [each for each in trace.spans if each.rank in set(ranks)]
    arrays = [each.array[np.argsort(each.array["start_s"], kind="stable")] for each in shown]
    until_s = _until(arrays, limit, trace.seconds)
    arrays = [_inside(array, until_s, trace.seconds) for array in arrays]
    every = np.concatenate([np.empty(0, dtype=SPAN), *arrays])
    tick_s = trace.seconds / _MOST_TICKS if trace.seconds else 1.0
    sizes, size_numbers = np.unique(every["nbytes"], return_inverse=True)
    parts = {each.rank: each for each in summary.ranks}
    return {
        "seconds": trace.seconds,
        "until": until_s,
        "tick": tick_s,
        "ranks": [
            {
                "rank": each.rank,
                "role": each.role,
                "host": each.host,
                "holds": holds[each.rank] if holds else "",
            }
            for each in shown
        ],
        "parts": [[round(parts[each.rank].share(p), 5) for p in PART_NAMES] for each in shown],
        "counts": [len(array) for array in arrays],
        "sizes": sizes.tolist(),
        "data": _columns(every, tick_s, size_numbers),
    }


def _until(arrays: Sequence[SpanArray], limit: int, seconds: float) -> float:
    """Return the time until which all lanes together have `limit` spans."""
    starts = np.concatenate([np.empty(0), *(array["start_s"] for array in arrays)])
    if len(starts) <= limit:
        return seconds
    return float(np.partition(starts, limit)[limit])


def _inside(array: SpanArray, until_s: float, seconds: float) -> SpanArray:
    """Clip the spans to the run. Spans of zero length are dropped."""
    array = array[array["start_s"] <= until_s].copy()
    array["start_s"] = np.clip(array["start_s"], 0, seconds)
    array["end_s"] = np.clip(array["end_s"], 0, seconds)
    return array[array["end_s"] > array["start_s"]]


def _columns(every: SpanArray, tick_s: float, size_numbers: np.ndarray) -> str:
    starts = np.rint(every["start_s"] / tick_s).astype(np.uint32)
    ends = np.rint(every["end_s"] / tick_s).astype(np.uint32)
    columns = (
        # Differences between neighbouring spans are small and similar, so they compress well. They wrap around at
        # the beginning of a lane.
        np.diff(starts, prepend=np.uint32(0)),
        ends - starts,
        np.diff(every["step"].astype(np.int32), prepend=np.int32(0)),
        every["peer"].astype(np.int32),
        size_numbers.astype(np.uint32),
        every["kind"].astype(np.uint8),
    )
    data = b"".join(column.astype(column.dtype.newbyteorder("<")).tobytes() for column in columns)
    return base64.b64encode(zlib.compress(data, 6)).decode("ascii")
