"""Find out which waits are for ranks that compute. A rank that computes is not late.

The driver, or the hub of a run on several hosts, compares the processor time of all ranks at intervals. For each
waiting rank, it publishes on the status board the number of intervals in which an awaited rank has computed. Such
waits have LIMIT deadlines instead of one.
"""

from __future__ import annotations

import logging
import time

from paceline.clusters.process.blame import ranks_behind
from paceline.clusters.process.status_board import Status, StatusBoard

LIMIT = 10
"""A wait for ranks that compute ends after this many deadlines without data."""

_INTERVAL_S = 0.5  # less if the deadline is short
# A rank that sleeps or waits also uses some processor time, to check the other ranks and to send heartbeats.
_LEAST_SHARE = 0.01
_SCHED_CLOCK = 2  # the kind of clock in a Linux clock id: time on the processor

_log = logging.getLogger("paceline")


def processor_ns(pid: int) -> int:
    """Return the processor time of a process on this host, all threads together. 0 if it has ended."""
    try:
        return time.clock_gettime_ns(~pid << 3 | _SCHED_CLOCK)
    except OSError:
        return 0


class AwaitedWork:
    """Watches the processor time of the ranks, in the driver."""

    def __init__(self, board: StatusBoard, deadline_s: float) -> None:
        self._board = board
        self._deadline_s = deadline_s
        self._seen_ns = [0] * board.ranks
        self._looked_s = time.monotonic()
        self._worked_s = [0.0] * board.ranks
        self._has_reported = False

    def is_due(self) -> bool:
        """Return whether the processor times on the board should be refreshed, and `look` called."""
        return time.monotonic() - self._looked_s >= min(_INTERVAL_S, self._deadline_s / 4)

    def look(self) -> None:
        """Compare the processor times on the board with those of the last call."""
        now_s = time.monotonic()
        least_ns = _LEAST_SHARE * (now_s - self._looked_s) * 1e9
        self._looked_s = now_s
        for rank, before_ns in enumerate(self._seen_ns):
            now_ns = self._seen_ns[rank] = self._board.processor_ns(rank)
            if now_ns - before_ns > least_ns:
                self._worked_s[rank] = now_s
        for rank in range(self._board.ranks):
            self._note_work_for(rank)

    def has_worked(self, rank: int) -> bool:
        """Return whether a rank computed in the last interval."""
        return self._worked_s[rank] == self._looked_s

    def _note_work_for(self, rank: int) -> None:
        if self._board.status(rank) is not Status.RUNNING:
            return
        working = [other for other in ranks_behind(rank, self._board) if self.has_worked(other)]
        if working:
            self._board.note_awaited_work(rank)
            self._report(rank, working[0])

    def _report(self, rank: int, working: int) -> None:
        waited_s = time.monotonic() - self._board.activity(rank).since_s
        if waited_s > self._deadline_s and not self._has_reported:
            self._has_reported = True
            text = (
                "rank %d has waited longer than deadline_s (%g s) for rank %d, which computes; waits continue up to "
                "%g s while a rank computes"
            )
            _log.warning(text, rank, self._deadline_s, working, LIMIT * self._deadline_s)
