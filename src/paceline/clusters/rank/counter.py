"""Counting the updates that ranks make at their own pace."""

from __future__ import annotations

__all__ = ["LATE", "UpdateCounter"]

LATE = 2**62
"""What a rank is told that counts for a leg that the others have ended: it is more than any run has."""


class UpdateCounter:
    """One for all ranks. Each leg's count begins with the updates of those before."""

    __slots__ = ("_first", "_updates")

    def __init__(self) -> None:
        self._first = self._updates = 0

    def count(self, first: int) -> int:
        """Count an update of the leg that began with this step; how many there are now."""
        if first > self._first:  # the first rank to count in a new leg
            self._first = self._updates = first
        if first < self._first:
            return LATE
        self._updates += 1
        return self._updates
