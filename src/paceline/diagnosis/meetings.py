"""Which waits belong to the same meeting: a barrier, or a collective that was recorded as a whole.

Every member of a meeting has come before any of them goes on. So the member that goes on first, at e, has the others
waiting at e; and none of them can be waiting in the next meeting yet. That is enough to put the waits together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["MeetingWaits", "Meetings", "find_meetings"]


class MeetingWaits(NamedTuple):
    """Waits for no message, each of one rank."""

    rank: NDArray[np.int64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    peer: NDArray[np.int64]
    """Whom the rank waited for; -1 if it did not say."""


class Meetings(NamedTuple):
    """What `find_meetings` finds."""

    meeting: NDArray[np.int64]
    """The number of each wait's meeting."""
    absent: list[tuple[int, int, float]]
    """Members without a wait, for they came last: the meeting, the rank, and when."""
    number: int
    """How many meetings there are."""


def find_meetings(waits: MeetingWaits) -> Meetings:
    """Put the waits together."""
    queues = _queues(waits)
    starts, ends, peers = waits.start_s.tolist(), waits.end_s.tolist(), waits.peer.tolist()
    meeting = np.full(len(waits.rank), -1, dtype=np.int64)
    absent: list[tuple[int, int, float]] = []
    count = 0
    while queues:
        first_s = min(ends[queue[-1]] for queue in queues.values())
        heads = {rank: queue[-1] for rank, queue in queues.items()}
        # Who only begins to wait at that instant is in the meeting if it also goes on then.
        members = {rank: n for rank, n in heads.items() if starts[n] < first_s or ends[n] <= first_s}
        for rank, wait in members.items():
            meeting[wait] = count
            queues[rank].pop()
            if not queues[rank]:
                del queues[rank]
        named = {peers[wait] for wait in members.values()} - {-1} - members.keys()
        absent += [(count, rank, first_s) for rank in sorted(named)]
        count += 1
    return Meetings(meeting, absent, count)


def _queues(waits: MeetingWaits) -> dict[int, list[int]]:
    """The waits of each rank, the first one last."""
    order = np.lexsort((waits.end_s, waits.start_s, waits.rank))
    ranks, borders = np.unique(waits.rank[order], return_index=True)
    pieces = np.split(order, borders[1:])
    return {int(rank): piece[::-1].tolist() for rank, piece in zip(ranks, pieces, strict=True)}
