"""The spans of all ranks as activities, in the order in which each rank's program began them.

The wait and the receive of one message are one activity, which begins when the program asked for the message. The wait
and the receive of one meeting (a barrier, or a collective recorded as a whole) are one activity, too. Cancelled
computations are left out, because no activity waited for their end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.trace.spans import COMPUTING, NO_MESSAGE, Kind, SpanArray, Spans

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
        ("message", "<i8"),
    ]
)


class What(IntEnum):
    """Kind of an activity."""

    COMPUTE = 0
    WORK = 1
    """Other work of the rank alone: an update, a sleep, a reduction in shared memory."""
    EVALUATE = 2
    """Not part of the run: see docs/decisions/0007."""
    SEND = 3
    RECEIPT = 4
    MEETING = 5
    IGNORED = 6
    """Cancelled, or a wait that is part of another activity. Left out."""


_BY_KIND = np.full(len(Kind), What.WORK)
for _kind, _what in {
    **dict.fromkeys(COMPUTING, What.COMPUTE),
    Kind.EVALUATE: What.EVALUATE,
    Kind.SEND: What.SEND,
    Kind.CANCELLED: What.IGNORED,
    Kind.WAIT: What.IGNORED,
}.items():
    _BY_KIND[_kind] = _what


@dataclass(frozen=True, slots=True)
class Activities:
    """Columns of facts, with one row for each activity. Rows are sorted by rank, then by start."""

    rank: Indices
    what: Indices
    start_s: Floats
    """Of a receipt: when the program asked for the message. Of a meeting: when the rank arrived."""
    end_s: Floats
    work_s: Floats
    """Seconds without the wait of a receipt; 0 for a meeting."""
    peer: Indices
    nbytes: Indices
    waited: NDArray[np.bool_]
    """Of a receipt: whether the message arrived after the program requested it."""
    message: Indices
    """Id of the message or the meeting: see `paceline.trace.spans`."""
    servers: frozenset[int]
    """Ranks that never compute a gradient."""
    hosts: Mapping[int, int]
    """The host of each rank."""

    def __len__(self) -> int:
        return len(self.rank)

    def where(self, what: What) -> Indices:
        """Return the rows of one kind."""
        return np.flatnonzero(self.what == what)


def read_activities(spans: Sequence[Spans], until_s: float = np.inf) -> Activities:
    """Return the activities that began before `until_s`."""
    table = np.concatenate([np.empty(0, _ROW), *(_of_rank(each, until_s) for each in spans)])
    # Members without a wait are first, so that a meeting precedes activities of its last member at the same time.
    table = np.concatenate([_members_without_wait(table), table])
    # A stable sort: activities that began at the same time stay in the order of recording. A send that was recorded
    # before a receive of zero duration then does not depend on that receive.
    table = table[np.lexsort((table["start_s"], table["rank"]))]
    computing = {each.rank for each in spans if len(each.of(*COMPUTING, Kind.CANCELLED))}
    hosts = {each.rank: each.host for each in spans}
    columns: dict[str, Any] = {name: table[name] for name in _ROW.names or ()}
    return Activities(**columns, servers=frozenset(hosts.keys() - computing), hosts=hosts)


def _of_rank(spans: Spans, until_s: float) -> Table:
    array = spans.array[spans.array["start_s"] < until_s]
    rows = np.zeros(len(array), dtype=_ROW)
    rows["rank"], rows["what"] = spans.rank, _BY_KIND[array["kind"]]
    for name in ("start_s", "end_s", "peer", "nbytes", "message"):
        rows[name] = array[name]
    waits, receives = _waits_of_receives(array)
    rows["what"][(array["kind"] == Kind.RECEIVE) & (array["message"] > NO_MESSAGE)] = What.RECEIPT
    meets = np.isin(array["kind"], (Kind.WAIT, Kind.RECEIVE)) & (array["message"] < NO_MESSAGE)
    meets[waits] = False
    rows["what"][meets] = What.MEETING
    rows["work_s"] = np.where(meets, 0.0, array["end_s"] - array["start_s"])
    rows["start_s"][receives] = array["start_s"][waits]
    rows["waited"][receives] = True
    remaining: Table = rows[rows["what"] != What.IGNORED]
    return remaining


def _waits_of_receives(array: SpanArray) -> tuple[Indices, Indices]:
    """Return the waits that ended with a receive, and these receives."""
    having = array["message"] != NO_MESSAGE
    waits = np.flatnonzero(having & (array["kind"] == Kind.WAIT))
    receives = np.flatnonzero(having & (array["kind"] == Kind.RECEIVE))
    _, first, second = np.intersect1d(
        array["message"][waits], array["message"][receives], return_indices=True
    )
    return waits[first], receives[second]


def _members_without_wait(table: Table) -> Table:
    """Return a row for each rank that came last to a barrier.

    It did not wait, so only the spans of other ranks have the id of the barrier.
    """
    members = table[table["what"] == What.MEETING]
    here = set(zip(members["message"].tolist(), members["rank"].tolist(), strict=True))
    came_s: dict[tuple[int, int], float] = {}
    columns = (members[name].tolist() for name in ("message", "peer", "end_s"))
    for meeting, peer, end_s in zip(*columns, strict=True):
        if peer >= 0 and (meeting, peer) not in here:
            came_s[meeting, peer] = min(end_s, came_s.get((meeting, peer), math.inf))
    rows = [
        (rank, What.MEETING, at_s, at_s, 0.0, -1, 0, False, meeting)
        for (meeting, rank), at_s in came_s.items()
    ]
    return np.array(rows, dtype=_ROW)
