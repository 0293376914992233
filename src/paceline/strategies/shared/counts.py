"""Integer counters that a strategy saves in checkpoints."""

from __future__ import annotations

from paceline.context import Context


class Counts:
    """Counters that are state of the strategy under a name, so that they are always up to date."""

    def __init__(self, ctx: Context, name: str, length: int = 1) -> None:
        import torch

        kept = ctx.model.state(name, like=torch.zeros(length, dtype=torch.int64))
        self.values: memoryview[int] = memoryview(kept.numpy().data)
        """The memory of the tensor: counting with a tensor is slow."""
