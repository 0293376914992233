"""Faults of a local run at their times: the driver sends the signals."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Sequence

from paceline.clusters.base.silence import patience_s
from paceline.faults import Cut, Fault, Join, Kill, Pause


class FaultInjector:
    """Kills, stops and continues the processes of ranks. Ranks slow down, or hold messages back, by themselves."""

    def __init__(
        self, faults: Sequence[Fault], pid_of: Callable[[int], int | None], deadline_s: float
    ) -> None:
        """`pid_of` returns the process of a rank. None if the rank has ended."""
        self._patience_s = patience_s(deadline_s)
        self._cut_off: list[tuple[float, int]] = []
        """When a rank has not been reachable for too long: time on the monotonic clock, and rank."""
        self._faults = faults
        self._pid_of = pid_of
        self._due: list[tuple[float, int, signal.Signals]] = []
        """Signals to send: time on the monotonic clock, rank, signal."""
        self._joins: list[tuple[float, int]] = []
        """When a lost rank begins anew: time on the monotonic clock, and step."""

    def begin(self, start_s: float) -> None:
        """Set the start of the run on the monotonic clock."""
        for fault in self._faults:
            if isinstance(fault, Join):
                at_s = -math.inf if fault.at_s is None else start_s + fault.at_s
                self._joins.append((at_s, fault.step or 0))
            if fault.at_s is None:
                continue
            if isinstance(fault, Cut) and fault.seconds_s > self._patience_s:
                due_s = start_s + fault.at_s + self._patience_s
                self._cut_off += [(due_s, rank) for rank in fault.side]
            elif isinstance(fault, Kill):
                self._add(start_s + fault.at_s, fault.rank, signal.SIGKILL)
            elif isinstance(fault, Pause):
                self._add(start_s + fault.at_s, fault.rank, signal.SIGSTOP)
                self._add(start_s + fault.at_s + fault.seconds_s, fault.rank, signal.SIGCONT)

    def pause(self, rank: int, seconds: float) -> None:
        """Stop a rank now, for some seconds."""
        self._send(rank, signal.SIGSTOP)
        self._add(time.monotonic() + seconds, rank, signal.SIGCONT)

    def joins_due(self, step: int) -> int:
        """Return how many lost ranks are to begin anew now. The run is in step number `step`."""
        now_s, before = time.monotonic(), len(self._joins)
        self._joins = [each for each in self._joins if each[0] > now_s or each[1] > step]
        return before - len(self._joins)

    def unreachable(self) -> list[int]:
        """Return the ranks that have now been cut off for too long, each once."""
        now_s = time.monotonic()
        due = [rank for due_s, rank in self._cut_off if due_s <= now_s]
        self._cut_off = [each for each in self._cut_off if each[0] > now_s]
        return due

    def send_due(self) -> float:
        """Send the signals that are due. Return the seconds until the next one."""
        now_s = time.monotonic()
        while self._due and self._due[0][0] <= now_s:
            _, rank, number = self._due.pop(0)
            self._send(rank, number)
        return self._due[0][0] - now_s if self._due else math.inf

    def _add(self, due_s: float, rank: int, number: signal.Signals) -> None:
        self._due.append((due_s, rank, number))
        self._due.sort(key=lambda each: each[0])

    def _send(self, rank: int, number: signal.Signals) -> None:
        pid = self._pid_of(rank)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
