"""Whole numbers that a strategy remembers from one checkpoint to the next."""

from __future__ import annotations

from paceline.context import Context

__all__ = ["Counts"]


class Counts:
    """Some numbers under a name. They are plain while they are used: a tensor is slow to count with."""

    def __init__(self, ctx: Context, name: str, length: int = 1) -> None:
        import torch

        self._kept = ctx.model.state(name, like=torch.zeros(length, dtype=torch.int64))
        self.values: list[int] = self._kept.tolist()

    def keep(self) -> None:
        """At the end of the program."""
        for number, value in enumerate(self.values):
            self._kept[number] = value
