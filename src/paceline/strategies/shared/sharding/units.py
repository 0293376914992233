"""Units of each segment, if ranks share segments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Unit(Protocol):
    """A sharded unit: its number, and the segments that use its parameters."""

    @property
    def number(self) -> int: ...
    @property
    def users(self) -> Sequence[int]: ...


def used_by(units: Sequence[Unit]) -> dict[int, list[int]]:
    """Return the units that contain the parameters of each segment."""
    found: dict[int, list[int]] = {}
    for unit in units:
        for segment in unit.users:
            found.setdefault(segment, []).append(unit.number)
    return found


def completed_by(units: Sequence[Unit]) -> dict[int, list[int]]:
    """Return the units with a complete gradient after the backward pass of each segment."""
    found: dict[int, list[int]] = {}
    for unit in units:
        found.setdefault(unit.users[0], []).append(unit.number)
    return found
