"""The spans of all ranks as activities, in the order in which each rank's program began them.

A wait for a message and its receipt are one activity, which begins when the message was asked for. Waits for no
message are meetings: the barrier of a window, or a collective that the world records as a whole. Cancelled
computations are left out: nothing waited for their end, only for what cancelled them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.diagnosis.meetings import MeetingWaits, find_meetings
from paceline.trace.spans import COMPUTING, Kind, SpanArray, Spans

__all__ = ["Activities", "Floats", "Indices", "What", "read_activities"]

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Table = NDArray[np.void]

_ROW = np.dtype(
    [
        ("rank", "<i8"),
        ("what", "<i8"),
        ("start_s", "<f8"),
        ("end_s", "<f8"),
        ("work_s", "<f8"),
        ("peer", "<i8"),
        ("nbytes", "<i8"),
        ("waited", "?"),
        ("meeting", "<i8"),
    ]
)


class What(IntEnum):
    """What an activity is."""

    COMPUTE = 0
    WORK = 1
    """Anything else that takes its own time: an update, a sleep, a reduction in shared memory."""
    EVALUATE = 2
    """Not part of the run: see docs/decisions/0007."""
    SEND = 3
    RECEIPT = 4
    MEETING = 5
    CALL = 6
    """A collective of a foreign library, which waits and communicates in one; while it is being read."""
    CANCELLED = 7
    """While it is being read."""


_BY_KIND = np.zeros(len(Kind), dtype=np.int64)
for _kind, _what in {
    **dict.fromkeys(COMPUTING, What.COMPUTE),
    Kind.UPDATE: What.WORK,
    Kind.SLEEP: What.WORK,
    Kind.EVALUATE: What.EVALUATE,
    Kind.SEND: What.SEND,
    Kind.RECEIVE: What.RECEIPT,
    Kind.WAIT: What.MEETING,
    Kind.CANCELLED: What.CANCELLED,
}.items():
    _BY_KIND[_kind] = _what


@dataclass(frozen=True, slots=True)
class Activities:
    """A column for each fact, a row for each activity; by rank, and within a rank by start."""

    rank: Indices
    what: Indices
    start_s: Floats
    """Of a receipt: when it was asked for."""
    end_s: Floats
    work_s: Floats
    """What it takes by itself: its seconds, without the wait of a receipt or a meeting."""
    peer: Indices
    nbytes: Indices
    waited: NDArray[np.bool_]
    """Of a receipt: whether the message came after it was asked for."""
    meeting: Indices
    """Of a meeting: the number that its members share. Else -1."""
    servers: frozenset[int]
    """Ranks that never compute a gradient."""
    hosts: Mapping[int, int]
    """The host of each rank."""

    def __len__(self) -> int:
        return len(self.rank)

    def where(self, what: What) -> Indices:
        """The rows of one kind."""
        return np.flatnonzero(self.what == what)


def read_activities(spans: Sequence[Spans], until_s: float = np.inf) -> Activities:
    """The activities that began before `until_s`."""
    table = np.concatenate([np.empty(0, _ROW), *(_of_rank(each, until_s) for each in spans)])
    table = _with_meetings(_with_calls_cut(table))
    # Stable: of what began at one instant, what was recorded first stays first. So a send that a rank began before it
    # took a message that was there, which has no length, is not taken to have waited for that message.
    table = table[np.lexsort((table["start_s"], table["rank"]))]
    computing = {each.rank for each in spans if len(each.of(*COMPUTING, Kind.CANCELLED))}
    hosts = {each.rank: each.host for each in spans}
    columns: dict[str, Any] = {name: table[name] for name in _ROW.names or ()}
    return Activities(**columns, servers=frozenset(hosts.keys() - computing), hosts=hosts)


def _of_rank(spans: Spans, until_s: float) -> Table:
    array = spans.array[spans.array["start_s"] < until_s]
    rows = np.zeros(len(array), dtype=_ROW)
    rows["rank"], rows["meeting"] = spans.rank, -1
    rows["what"] = _BY_KIND[array["kind"]]
    for name in ("start_s", "end_s", "peer", "nbytes"):
        rows[name] = array[name]
    rows["work_s"] = array["end_s"] - array["start_s"]
    receipts = _follow_their_wait(array)
    rows["start_s"][receipts] = array["start_s"][receipts - 1]
    rows["waited"][receipts] = True
    pairless = (array["kind"] == Kind.RECEIVE) & (array["peer"] < 0)
    rows["what"][pairless] = What.CALL
    rows["what"][np.flatnonzero(pairless[1:] & (array["kind"][:-1] == Kind.WAIT)) + 1] = What.WORK
    rows["work_s"][rows["what"] == What.MEETING] = 0.0
    kept = rows["what"] != What.CANCELLED
    kept[receipts - 1] = False
    remaining: Table = rows[kept]
    return remaining


def _follow_their_wait(array: SpanArray) -> Indices:
    """The rows of receipts whose wait is the row before: worlds record the two together."""
    before, after = array[:-1], array[1:]
    pairs = (before["kind"] == Kind.WAIT) & (after["kind"] == Kind.RECEIVE)
    pairs &= (before["peer"] == after["peer"]) & (after["peer"] >= 0) & (before["end_s"] == after["start_s"])
    return np.flatnonzero(pairs) + 1


def _with_calls_cut(table: Table) -> Table:
    """A call that waits and communicates in one: no rank's share of communicating is longer than the quickest's."""
    calls = np.flatnonzero(table["what"] == What.CALL)
    if not len(calls):
        return table
    found = find_meetings(_waits(table[calls]))
    shortest_s = np.full(found.number, np.inf)
    np.minimum.at(shortest_s, found.meeting, table["work_s"][calls])
    waits = table[calls]
    waits["what"], waits["work_s"] = What.MEETING, 0.0
    waits["end_s"] = np.maximum(waits["end_s"] - shortest_s[found.meeting], waits["start_s"])
    table["what"][calls], table["start_s"][calls] = What.WORK, waits["end_s"]
    table["work_s"][calls] = table["end_s"][calls] - waits["end_s"]
    return np.concatenate([waits, table])


def _with_meetings(table: Table) -> Table:
    members = np.flatnonzero(table["what"] == What.MEETING)
    if not len(members):
        return table
    found = find_meetings(_waits(table[members]))
    table["meeting"][members] = found.meeting
    absent = np.zeros(len(found.absent), dtype=_ROW)
    for row, (meeting, rank, at_s) in zip(absent, found.absent, strict=True):
        row["rank"], row["meeting"], row["what"], row["peer"] = rank, meeting, What.MEETING, -1
        row["start_s"] = row["end_s"] = at_s
    # First, so that the meeting comes before what its last member did at the same instant.
    return np.concatenate([absent, table])


def _waits(rows: Table) -> MeetingWaits:
    return MeetingWaits(rows["rank"], rows["start_s"], rows["end_s"], rows["peer"])
