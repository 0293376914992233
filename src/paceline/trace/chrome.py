"""Spans as Chrome trace events, the JSON that Perfetto (https://ui.perfetto.dev) opens.

A process is a rank, a thread is a track. Perfetto drops a slice that overlaps another on its track, were it
by a nanosecond. So overlapping spans are spread over further tracks, and times lie on a grid of 1/64 µs,
exact in binary and in decimal: no reader's rounding can make two neighbours overlap.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Sequence

import numpy as np

from paceline.trace.spans import COMPUTING, Kind, SpanArray, Spans

__all__ = ["chrome_json"]

_LANES = {
    "compute": (*COMPUTING, Kind.UPDATE, Kind.CANCELLED, Kind.EVALUATE, Kind.SLEEP),
    "communicate": (Kind.RECEIVE, Kind.WAIT),
    "send": (Kind.SEND,),
}
_TICKS_PER_US = 64
_LABELS = [kind.label for kind in Kind]


def chrome_json(spans: Sequence[Spans], seconds: float) -> str:
    """The whole document, one event a line. Equal spans give equal text."""
    # Perfetto means the kernel by process 0 and the main thread by tid = pid, so neither occurs here.
    first_tid = max((each.rank for each in spans), default=0) + 2
    events = [event for each in spans for event in _rank_events(each, first_tid)]
    other = json.dumps({"seconds": seconds, "ranks": len(spans)})
    lines = ",\n".join(events)
    return f'{{"displayTimeUnit":"ms","otherData":{other},"traceEvents":[\n{lines}\n]}}\n'


def _rank_events(spans: Spans, first_tid: int) -> Iterator[str]:
    pid = spans.rank + 1
    yield _metadata("process_name", pid, first_tid, name=f"rank {spans.rank} ({spans.role})")
    yield _metadata("process_labels", pid, first_tid, labels=f"host {spans.host}")
    yield _metadata("process_sort_index", pid, first_tid, sort_index=spans.rank)
    tid = first_tid
    for lane, kinds in _LANES.items():
        array, starts, ends = _on_grid(spans.of(*kinds))
        tracks = _tracks(starts, ends)
        used = max(tracks, default=-1) + 1
        for track in range(used):
            name = lane if track == 0 else f"{lane} {track + 1}"
            yield _metadata("thread_name", pid, tid + track, name=name)
            yield _metadata("thread_sort_index", pid, tid + track, sort_index=tid + track)
        yield from _slices(array, starts, ends, [tid + track for track in tracks], pid)
        tid += used


def _metadata(kind: str, pid: int, tid: int, **args: object) -> str:
    return json.dumps(
        {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": args},
        separators=(",", ":"),
        ensure_ascii=False,
    )


def _on_grid(array: SpanArray) -> tuple[SpanArray, list[int], list[int]]:
    """The spans by start, then by all else, and their starts and ends in ticks. No time is before 0."""
    array = array[
        np.lexsort([array[name] for name in ("step", "nbytes", "peer", "kind", "end_s", "start_s")])
    ]
    scale = _TICKS_PER_US * 1e6
    starts, ends = (np.rint(np.maximum(array[n], 0) * scale).astype(np.int64) for n in ("start_s", "end_s"))
    return array, starts.tolist(), ends.tolist()


def _tracks(starts: Sequence[int], ends: Sequence[int]) -> list[int]:
    """For spans sorted by start, the lowest track that is free. No colouring needs fewer tracks."""
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    tracks = []
    for start, end in zip(starts, ends, strict=True):
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        track = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, track))
        tracks.append(track)
    return tracks


def _slices(
    array: SpanArray, starts: Sequence[int], ends: Sequence[int], tids: Sequence[int], pid: int
) -> Iterator[str]:
    columns = (array[name].tolist() for name in ("kind", "peer", "nbytes", "step"))
    for start, end, tid, kind, peer, nbytes, step in zip(starts, ends, tids, *columns, strict=True):
        yield (
            f'{{"name":"{_LABELS[kind]}","ph":"X","pid":{pid},"tid":{tid},'
            f'"ts":{start / _TICKS_PER_US},"dur":{(end - start) / _TICKS_PER_US},'
            f'"args":{{"peer":{peer},"bytes":{nbytes},"step":{step}}}}}'
        )
