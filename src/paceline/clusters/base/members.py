"""Agreement on the members of a run that loses ranks: events in, decisions out. The same code for every cluster.

A generation of members ends when one of them is lost. Each remaining member then stops its program and arrives here
with the step whose state it has. When all have arrived, the next generation is decided:

- If a holder has the whole state of the run, the generation begins with the first step that no holder has completed.
  A step that one of them has completed needed the gradients of all, so the others copy its state. The holders are all
  workers, or one server.
- If each worker has a model of its own, the generation begins with the newest step that all can go back to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from paceline.clusters.base.job import Job


class MembersChanged(BaseException):
    """Raised at a wait of a program if the members of the run change. Strategies do not catch it."""


NO_STATE = "no worker with the state of the run is left"


def too_few(left: int, fewest: int) -> str:
    """Return the explanation for an error: too few workers are left."""
    return f"{left} worker{'s are' if left != 1 else ' is'} left, fewer than min_workers={fewest}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Membership:
    """One generation of members."""

    generation: int
    members: tuple[int, ...]
    """Ranks. Those that have joined come after those that have stayed."""
    first: int = 0
    """First step of the generation."""
    source: int = 0
    """Member with the state of that step."""
    behind: tuple[int, ...] = ()
    """Members that copy this state."""
    recorded: int = 0
    """Number of records that lost reporters have left."""
    drawn: int = 0
    """Next batch of workers that draw batches at their own pace."""
    server: int | None = None
    """The only rank with the state of the run. None if workers have it."""
    reporter: int = 0
    joined: tuple[int, ...] = ()
    """Members that have begun anew."""
    repeated: int = 0
    """Steps that a member had begun and must repeat."""

    def to_values(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Membership:
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return cls(**fields)


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrival:
    """What a member reports when it has stopped its program."""

    points: tuple[int, ...]
    """Steps whose state this member can begin with, in order. The last one is the first step that it has not
    completed. Empty if it joins the run."""
    step: int = 0
    """Step that it was in. If it draws batches at its own pace, the number of its last batch."""
    drawn: int = 0
    """Batch to continue with, of a worker that draws batches at its own pace. 0 if unknown."""
    own_pace: bool = False
    ended: bool = False
    """Whether it has completed the run."""

    @property
    def is_in_step(self) -> bool:
        """Whether it has stopped in a step of the run."""
        return bool(self.points) and not self.own_pace and not self.ended and self.step >= self.points[0]

    def to_values(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Arrival:
        return cls(**{**values, "points": tuple(values["points"])})


@dataclass(slots=True)
class Agreement:
    """The members of a run, and the next generation of them once all have arrived."""

    present: Membership
    fewest: int
    """Minimum number of workers."""
    saved: Callable[[int], int] | None = None
    """Returns the step of the newest checkpoint up to a given step, if all members go back to it."""
    are_apart: bool = False
    """Whether each worker has a model of its own."""
    wanted: int = 0
    """Number of the generation that is to begin. Above the present one if a member was lost."""
    lost: set[int] = field(default_factory=set)
    _joining: set[int] = field(default_factory=set)
    """Ranks that become members with the next generation."""
    _arrived: dict[int, Arrival] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Job) -> Agreement:
        assert job.min_workers is not None
        server = job.reporter if job.state_at == "server" else None
        everybody = Membership(
            generation=0, members=tuple(range(job.ranks)), server=server, reporter=job.reporter
        )
        saved = partial(_newest_checkpoint, job) if job.returns_to_checkpoint else None
        return cls(everybody, job.min_workers, saved, are_apart=job.state_at == "workers")

    @property
    def members(self) -> list[int]:
        """Present members that are not lost, then ranks that join them, then a rank that is a server only.

        The first one is the reporter if there is no server, so a rank that joins does not take its place.
        """
        gone = self.lost.union(self._joining)
        stay = [rank for rank in self.present.members if rank not in gone]
        serves_only = self._serves_only
        return sorted(
            [*stay, *sorted(self._joining)], key=lambda rank: serves_only and rank == self.present.server
        )

    @property
    def missing(self) -> list[int]:
        """Members that the decision waits for."""
        return [rank for rank in self.members if rank not in self._arrived]

    @property
    def is_over(self) -> bool:
        """Whether all members have completed the run."""
        if self.wanted != self.present.generation or self.missing:
            return False
        return all(self._arrived[rank].ended for rank in self.members)

    @property
    def is_lost(self) -> bool:
        """Whether all members have arrived and none has a state: they have joined, and who had it is lost."""
        return not self.missing and not any(self._arrived[rank].points for rank in self.members)

    @property
    def _workers(self) -> int:
        """Number of workers with a state."""
        return len(self.members) - len(self._joining) - self._serves_only

    @property
    def _serves_only(self) -> bool:
        """Whether the server computes no gradients. Such a rank comes after the workers."""
        return bool(self.present.server)

    @property
    def too_few(self) -> str:
        """Explanation for an error: too few members are left."""
        return too_few(self._workers, self.fewest)

    def lose(self, rank: int) -> bool:
        """Record the loss of a member. Return whether enough are left."""
        if rank in self.members:
            self.lost.add(rank)
            self.wanted += 1
        self._joining.discard(rank)
        self._arrived.pop(rank, None)
        return self._workers >= self.fewest

    def join(self, rank: int) -> None:
        """Let a rank become a member that was lost and has begun anew. It must arrive, too."""
        self.lost.discard(rank)
        self._joining.add(rank)
        self.wanted += 1

    def arrive(self, rank: int, arrival: Arrival) -> None:
        """Record that a member has stopped its program."""
        if rank in self.members:
            self._arrived[rank] = arrival

    def decide(self, recorded: int) -> Membership | None:
        """Return the next generation. None if a member is missing, or if none is lost."""
        if self.wanted == self.present.generation or self.missing or self.is_lost:
            return None
        members, server = self.members, self.present.server
        first = self._first_step(members if server is None else [server])
        points = self._arrived
        there = [rank for rank in members if first in points[rank].points or self.saved is not None]
        source = there[0] if server is None else server
        behind = [rank for rank in members if rank not in there or server not in (None, rank)]
        self.present = Membership(
            generation=self.wanted,
            members=tuple(members),
            first=first,
            source=source,
            behind=tuple(behind),
            recorded=min(recorded, first),
            drawn=self._next_batch(members, first),
            server=server,
            reporter=members[0] if server is None else server,
            joined=tuple(sorted(self._joining)),
            repeated=self._repeated(members, first),
        )
        self._arrived.clear()
        self._joining.clear()
        return self.present

    def _first_step(self, holders: Sequence[int]) -> int:
        """Return the step that the next generation begins with."""
        points = [self._arrived[rank].points for rank in holders if self._arrived[rank].points]
        if self.saved is not None:
            # A checkpoint of an earlier generation may become complete late. It is ahead of the members' records.
            return self.saved(max(each[-1] for each in points))
        if self.are_apart:
            return max(set(points[0]).intersection(*points))
        return max(each[-1] for each in points)

    def _repeated(self, members: Sequence[int], first: int) -> int:
        arrived = [self._arrived[rank] for rank in members]
        return max([0, *(each.step + 1 - first for each in arrived if each.is_in_step)])

    def _next_batch(self, members: Sequence[int], first: int) -> int:
        """Return the next batch of workers at their own pace: all continue with the batch of the furthest one.

        Workers that wait for each update are in step with it, and draw the batch of the next update. The present
        generation's first batch counts too: maybe no member has drawn a batch since it began.
        """
        furthest = max([self.present.drawn, *(self._arrived[rank].drawn for rank in members)])
        return first if furthest in (first - 1, first) else furthest


def _newest_checkpoint(job: Job, until: int) -> int:
    """Return the step of the newest intact checkpoint up to step `until`. 0 if there is none: the run begins anew."""
    assert job.checkpointing is not None
    found = job.checkpointing.store.newest(good=True, until=until)
    return 0 if found is None else found.step
