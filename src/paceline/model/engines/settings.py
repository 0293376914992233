"""Settings of an engine, the same for every part of the model."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.model.autocast import Autocast
from paceline.model.loss_scale import LossScale
from paceline.task.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is trained, and the random stream of the rank that trains it."""

    task: Task
    seed: int = 0
    rank: int = 0
    autocast: tuple[Autocast, ...] = ()
    loss_scale: LossScale | None = None
    """None unless the task's precision is "fp16"."""
