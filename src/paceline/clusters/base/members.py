"""Agreement on the members of a run that loses ranks: events in, decisions out. The same code for every cluster.

A generation of members ends when one of them is lost. Each remaining member then stops its program and arrives here
with the number of steps whose update it has made. When all have arrived, the next generation is decided. It begins
with the first step that no member has completed. A step that one member has completed needed the gradients of all, so
the others get its result: they copy the state of that member.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class MembersChanged(BaseException):
    """Raised at a wait of a program if the members of the run change. Strategies do not catch it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Membership:
    """One generation of members."""

    generation: int
    members: tuple[int, ...]
    """Ranks, in order."""
    first: int = 0
    """First step of the generation."""
    source: int = 0
    """Member with the state of that step."""
    behind: tuple[int, ...] = ()
    """Members that copy this state."""
    recorded: int = 0
    """Number of records that lost reporters have left."""

    @property
    def reporter(self) -> int:
        return self.members[0]

    def to_values(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Membership:
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return cls(**fields)


@dataclass(slots=True)
class Agreement:
    """The members of a run, and the next generation of them once all have arrived."""

    present: Membership
    fewest: int
    """Minimum number of members."""
    wanted: int = 0
    """Number of the generation that is to begin. Above the present one if a member was lost."""
    lost: set[int] = field(default_factory=set)
    _complete: dict[int, int] = field(default_factory=dict)
    """Members that have arrived, with the number of steps that each has completed."""
    _ended: set[int] = field(default_factory=set)
    """Members that have arrived at the end of the run."""

    @property
    def members(self) -> list[int]:
        """Present members that are not lost."""
        return [rank for rank in self.present.members if rank not in self.lost]

    @property
    def missing(self) -> list[int]:
        """Members that the decision waits for."""
        return [rank for rank in self.members if rank not in self._complete]

    @property
    def is_over(self) -> bool:
        """Whether all members have completed the run."""
        return self.wanted == self.present.generation and self._ended.issuperset(self.members)

    @property
    def too_few(self) -> str:
        """Explanation for an error: too few members are left."""
        left = len(self.members)
        return f"{left} worker{'s are' if left != 1 else ' is'} left, fewer than min_workers={self.fewest}"

    def lose(self, rank: int) -> bool:
        """Record the loss of a member. Return whether enough are left."""
        if rank in self.members:
            self.lost.add(rank)
            self.wanted += 1
        self._complete.pop(rank, None)
        self._ended.discard(rank)
        return len(self.members) >= self.fewest

    def arrive(self, rank: int, complete: int, *, ended: bool) -> None:
        """Record that a member has stopped its program. With `ended` it has completed the run."""
        if rank in self.members:
            self._complete[rank] = complete
            if ended:
                self._ended.add(rank)

    def decide(self, recorded: int) -> Membership | None:
        """Return the next generation. None if a member is missing, or if none is lost."""
        if self.wanted == self.present.generation or self.missing:
            return None
        members = self.members
        first = max(self._complete[rank] for rank in members)
        behind = tuple(rank for rank in members if self._complete[rank] < first)
        source = next(rank for rank in members if rank not in behind)
        self.present = Membership(
            generation=self.wanted,
            members=tuple(members),
            first=first,
            source=source,
            behind=behind,
            recorded=min(recorded, first),
        )
        self._complete.clear()
        self._ended.clear()
        return self.present
