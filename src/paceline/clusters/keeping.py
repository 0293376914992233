"""How a run is kept on disk, and what it goes on from: what its ranks are told of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.checkpoints import Store

__all__ = ["Keeping"]

_DEADLINE_S = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Keeping:
    """A checkpoint is written at the end of each leg, by all ranks."""

    store: Store
    every_s: float | None = None
    """Seconds after which the reporter ends a leg. None: legs end where the job says."""
    resumed: Path | None = None
    """The checkpoint that the run goes on from. None: it begins anew."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the run is, for whoever reads its checkpoints."""
    deadline_s: float = _DEADLINE_S
    """How long the reporter waits for the other ranks' files."""
