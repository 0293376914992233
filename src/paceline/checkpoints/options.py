"""The checkpoint arguments of `pl.train`, validated before the run."""

from __future__ import annotations

import os
from dataclasses import dataclass

from paceline.costs.units import parse_seconds
from paceline.errors import ConfigurationError

DEFAULT_EVERY = "5min"
_RESUME = (False, True, "must", "newest-good")


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointOptions:
    """The arguments of `pl.train` that control checkpoints."""

    checkpoint: str | os.PathLike[str] | None = None
    every: int | str | None = None
    resume: bool | str = False
    keep: int = 2
    keep_best: bool = False

    def __post_init__(self) -> None:
        if self.checkpoint is None:
            for argument, value, default in self._others():
                if value != default:
                    remedy = 'give the folder, such as checkpoint="runs/x"'
                    raise ConfigurationError(argument, "needs checkpoint", value, remedy)
        elif not isinstance(self.checkpoint, str | os.PathLike) or not os.fspath(self.checkpoint):
            raise ConfigurationError("checkpoint", "must be the path of a folder", self.checkpoint)
        if not any(self.resume is each or self.resume == each for each in _RESUME):
            bound = 'must be False, True, "must" or "newest-good"'
            raise ConfigurationError(
                "resume", bound, self.resume, "True starts a new run if there is no checkpoint"
            )
        _ = self.interval

    def _others(self) -> list[tuple[str, object, object]]:
        return [
            ("checkpoint_every", self.every, None),
            ("resume", self.resume, False),
            ("keep", self.keep, 2),
            ("keep_best", self.keep_best, False),
        ]

    @property
    def interval(self) -> tuple[int | None, float | None]:
        """Interval between two checkpoints as (steps, None) or (None, seconds)."""
        every = DEFAULT_EVERY if self.every is None else self.every
        if isinstance(every, str) and not every.strip().isdecimal():
            seconds = parse_seconds(every, "checkpoint_every")
            if seconds <= 0:
                raise ConfigurationError("checkpoint_every", "must be more than 0 s", every, "try 5min")
            return None, seconds
        steps = int(every) if isinstance(every, str) else every
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
            remedy = 'write 100 for every 100 steps, or "5min"'
            bound = "must be a whole number of at least 1, or a time"
            raise ConfigurationError("checkpoint_every", bound, every, remedy)
        return steps, None
