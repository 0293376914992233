"""A generation of the members of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """Members that have worked together, until a rank was lost or joined."""

    number: int
    """Generations are numbered from 0. A number is missing if ranks were lost during a change of members."""
    members: tuple[int, ...]
    """Ranks. Those that have joined come after those that have stayed."""
    first_step: int = 0
    """First step. A step that was dropped is repeated as the first step of the next generation."""
    lost: tuple[int, ...] = ()
    """Members of the generation before that were lost."""
    repeated_steps: int = 0
    """Steps of the generation before that are repeated, including the incomplete one."""
    joined: tuple[int, ...] = ()
    """Members that have joined with this generation."""
    detected_s: float = 0.0
    """When the first of these losses was detected, or the first member was ready to join, in seconds of the run."""
    began_s: float = 0.0
    """When the members had agreed, in seconds of the run."""
