"""A collective of one group, as a value: its goal, its algorithm and the group's size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from paceline.errors import ConfigurationError
from paceline.schedules.collectives import COLLECTIVES, group_plan
from paceline.schedules.collectives.plan import GroupPlan
from paceline.schedules.collectives.steps import (
    Buffer,
    Chunks,
    Recv,
    Reduce,
    Schedule,
    Send,
    Step,
    chunk_bounds,
    chunk_slice,
)


@dataclass(frozen=True, slots=True)
class Collective:
    """A goal of `COLLECTIVES` and an algorithm for this goal. Root and hosts are set if the algorithm takes them.

    A schedule refers to chunks by number, so it is valid for chunks of any size: `bounds` may cut the data unevenly.
    """

    goal: str
    algorithm: str
    size: int
    root: int | None = None
    hosts: tuple[int, ...] | None = None
    bounds: tuple[int, ...] | None = None
    """Start of each rank's chunk, then the length of the data; None if chunks are nearly equal."""

    def options(self) -> dict[str, Any]:
        named = {"root": self.root, "hosts": self.hosts}
        return {name: value for name, value in named.items() if value is not None}

    def schedule(self, rank: int) -> Schedule:
        """Return the schedule of one rank of the group."""
        return _schedule(self, rank)

    def bounds_of(self, length: int, chunks: int) -> Sequence[int]:
        """Return the start of each chunk of data with `length` elements, followed by `length`."""
        if self.bounds is None:
            return chunk_bounds(length, chunks)
        if (len(self.bounds), self.bounds[-1]) != (chunks + 1, length):
            bound = f"must cut {length} elements into {chunks} parts, one for each rank"
            got = f"{len(self.bounds) - 1} parts of {self.bounds[-1]}"
            raise ConfigurationError("parts", bound, got, "give each rank a part, which may be empty")
        return self.bounds

    def plan(self) -> GroupPlan:
        """Return the schedule of the whole group, as arrays."""
        return _plan(self)


@lru_cache(maxsize=4096)
def _schedule(collective: Collective, rank: int) -> Schedule:
    build = COLLECTIVES[collective.goal][collective.algorithm]
    return build(rank, collective.size, **collective.options())


@lru_cache(maxsize=64)
def _plan(collective: Collective) -> GroupPlan:
    return group_plan(collective.goal, collective.algorithm, collective.size, **collective.options())


def uneven_bounds(parts: Sequence[slice], length: int, size: int) -> tuple[int, ...] | None:
    """Return the bounds of a collective in which rank i owns part i; None if the parts are nearly equal."""
    bounds = [0, *(part.stop for part in parts)]
    if any(part.start != start or part.stop < start for part, start in zip(parts, bounds, strict=False)):
        remedy = "begin each part where the previous one ends, and the first at 0"
        raise ConfigurationError("parts", "must be contiguous", list(parts)[:20], remedy)
    return None if bounds == chunk_bounds(length, size) else tuple(bounds)


class Action(NamedTuple):
    """A step with its chunks resolved to slices of the flat data (or of the scratch memory beside it)."""

    kind: type[Step]
    peer: int
    """Position of the other rank in the group; -1 for a step without a message."""
    where: slice
    in_scratch: bool
    source: slice = slice(0)
    """Slice read by a Copy or an Accumulate."""
    source_in_scratch: bool = False


@lru_cache(maxsize=4096)
def actions(collective: Collective, rank: int, length: int) -> tuple[tuple[Action, ...], ...]:
    """Return a rank's schedule for data of `length` elements, round by round."""
    schedule = collective.schedule(rank)
    bounds = collective.bounds_of(length, schedule.chunks)
    return tuple(tuple(_action(step, bounds) for step in steps) for steps in schedule.rounds)


def scratch_length(collective: Collective, rank: int, length: int) -> int:
    """Return the number of scratch elements that a rank's schedule needs; 0 if none."""
    schedule = collective.schedule(rank)
    return schedule.scratch * length if _uses_scratch(collective, rank) else 0


@lru_cache(maxsize=4096)
def _uses_scratch(collective: Collective, rank: int) -> bool:
    rounds = actions(replace(collective, bounds=None), rank, 1)
    return any(action.in_scratch or action.source_in_scratch for steps in rounds for action in steps)


def _action(step: Step, bounds: Sequence[int]) -> Action:
    if isinstance(step, Send):
        return Action(Send, step.to, *_place(step.chunks, bounds))
    if isinstance(step, Recv | Reduce):
        return Action(type(step), step.source, *_place(step.chunks, bounds))
    return Action(type(step), -1, *_place(step.target, bounds), *_place(step.source, bounds))


def _place(chunks: Chunks, bounds: Sequence[int]) -> tuple[slice, bool]:
    return chunk_slice(chunks, bounds), chunks.buffer is Buffer.SCRATCH
