"""A rank's whole model before a replica is made of it: no memory of the rank's own is in it yet.

A rank that holds some layers only, or shards of them, takes these, and never has all parameters at once.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import nn

from paceline.replica.layout import Layout
from paceline.replica.portable import taken_over
from paceline.replica.replica import Replica
from paceline.task import Task

__all__ = ["Blueprint"]


class Blueprint:
    """What a replica of the processor's memory is made of. Its module's parameters lie in the memory of the task."""

    device = torch.device("cpu")

    def __init__(self, task: Task, *, seed: int, rank: int, autocast: tuple[Any, ...]) -> None:
        self.task = task
        self.module: nn.Module = taken_over(task, seed)
        self.identity: dict[str, Any] = {"seed": seed, "rank": rank, "autocast": autocast}

    @cached_property
    def layout(self) -> Layout:
        return Layout.of(self.module)

    def build(self, *, is_bare: bool = False) -> Replica:
        return Replica(self.task, self.module, device=self.device, is_bare=is_bare, **self.identity)
