"""Counter of the updates of ranks that run independently."""

from __future__ import annotations

LATE = 2**62
"""Count that a rank receives in a generation that other ranks have ended. It exceeds the steps of any run."""


class UpdateCounter:
    """One counter for all ranks. The count of a generation starts with the updates of all earlier generations."""

    __slots__ = ("_first", "_updates")

    def __init__(self) -> None:
        self._first = self._updates = 0

    def count(self, first: int) -> int:
        """Count one update of the generation that began with step `first`. Return the new total."""
        if first > self._first:  # the first rank to count in a new generation
            self._first = self._updates = first
        if first < self._first:
            return LATE
        self._updates += 1
        return self._updates
