"""Spans as Chrome trace events, the JSON that Perfetto (https://ui.perfetto.dev) opens.

A process is a rank, a thread is a track. Perfetto drops a slice that overlaps another on its track, even by a
nanosecond. So overlapping spans are on separate tracks. Times are multiples of 1/64 µs, which are exact in binary
and in decimal, so rounding in a reader cannot make two neighbours overlap. A flow (an arrow) joins the send and the
receive of each message.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Sequence

import numpy as np

from paceline.trace.spans import COMPUTING, Kind, SpanArray, Spans

_LANES = {
    "compute": (*COMPUTING, Kind.UPDATE, Kind.CANCELLED, Kind.EVALUATE, Kind.SLEEP),
    "communicate": (Kind.RECEIVE, Kind.WAIT),
    "send": (Kind.SEND,),
}
_FLOWS = {Kind.SEND: '"ph":"s"', Kind.RECEIVE: '"ph":"f","bp":"e"'}
"""Start and end of a flow. `bp` binds the end of the flow to the enclosing slice, not to the next slice."""
_TICKS_PER_US = 64
_LABELS = [kind.label for kind in Kind]


def chrome_json(spans: Sequence[Spans], seconds: float) -> str:
    """Return the whole document, one event per line. Equal spans give equal text."""
    # In Perfetto process 0 is the kernel and tid = pid is the main thread, so neither is used here.
    first_tid = max((each.rank for each in spans), default=0) + 2
    messages = _messages(spans)
    events = [event for each in spans for event in _rank_events(each, first_tid, messages)]
    other = json.dumps({"seconds": seconds, "ranks": len(spans)})
    lines = ",\n".join(events)
    return f'{{"displayTimeUnit":"ms","otherData":{other},"traceEvents":[\n{lines}\n]}}\n'


def _messages(spans: Sequence[Spans]) -> frozenset[int]:
    """Return the ids of the messages with both ends in the trace."""
    ends = [[each.of(kind)["message"] for each in spans] for kind in _FLOWS]
    sent, received = (np.concatenate([np.empty(0, np.int64), *arrays]) for arrays in ends)
    both = np.intersect1d(sent, received)
    return frozenset(both[both >= 0].tolist())


def _rank_events(spans: Spans, first_tid: int, messages: frozenset[int]) -> Iterator[str]:
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
        tids = [tid + track for track in tracks]
        yield from _slices(array, starts, ends, tids, pid)
        yield from _flows(array, starts, tids, pid, messages)
        tid += used


def _metadata(kind: str, pid: int, tid: int, **args: object) -> str:
    return json.dumps(
        {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": args},
        separators=(",", ":"),
        ensure_ascii=False,
    )


def _on_grid(array: SpanArray) -> tuple[SpanArray, list[int], list[int]]:
    """Return the sorted spans, by start first, and their starts and ends in ticks. No time is before 0."""
    array = array[
        np.lexsort(
            [array[name] for name in ("message", "step", "nbytes", "peer", "kind", "end_s", "start_s")]
        )
    ]
    scale = _TICKS_PER_US * 1e6
    starts, ends = (np.rint(np.maximum(array[n], 0) * scale).astype(np.int64) for n in ("start_s", "end_s"))
    return array, starts.tolist(), ends.tolist()


def _tracks(starts: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Return the lowest free track of each span, for spans sorted by start. This uses the fewest tracks."""
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


def _flows(
    array: SpanArray, starts: Sequence[int], tids: Sequence[int], pid: int, messages: frozenset[int]
) -> Iterator[str]:
    columns = (array[name].tolist() for name in ("kind", "message"))
    for start, tid, kind, message in zip(starts, tids, *columns, strict=True):
        if kind in _FLOWS and message in messages:
            # The id is a string: readers store numbers as doubles, which have only 53 bits.
            yield (
                f'{{"name":"message","cat":"message",{_FLOWS[kind]},"id":"{message:x}",'
                f'"pid":{pid},"tid":{tid},"ts":{start / _TICKS_PER_US}}}'
            )
