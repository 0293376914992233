"""Checkpoint settings of a run, as passed to its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.checkpoints import Store

_DEADLINE_S = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointPlan:
    """Checkpoint settings. All ranks write a checkpoint at the end of each generation."""

    store: Store
    every_s: float | None = None
    """Seconds after which the reporter ends a generation. None if generations end at the steps set in the job."""
    resumed: Path | None = None
    """Checkpoint to resume from. None for a new run."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Description of the run, stored in its checkpoints."""
    deadline_s: float = _DEADLINE_S
    """Seconds that the reporter waits for the files of the other ranks."""
