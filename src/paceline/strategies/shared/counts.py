"""Integer counters that a strategy saves in checkpoints."""

from __future__ import annotations

from paceline.context import Context


class Counts:
    """Named counters. They are Python integers while in use, because tensors are slow to count with."""

    def __init__(self, ctx: Context, name: str, length: int = 1) -> None:
        import torch

        self._kept = ctx.model.state(name, like=torch.zeros(length, dtype=torch.int64))
        self.values: list[int] = self._kept.tolist()

    def keep(self) -> None:
        """Store the counters for the checkpoint. Call it at the end of the program."""
        for number, value in enumerate(self.values):
            self._kept[number] = value
