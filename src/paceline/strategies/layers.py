"""The model by its layers: each rank holds some of them, and one rank works at a time.

A batch goes forward from rank to rank, and its gradient comes back the same way. Ranks hold less than the whole model,
but wait for each other: it is the textbook's picture of model parallelism, and the yardstick of the pipelines.

When: A model that is too large for one worker, to see what a pipeline gains.
Cost, p equal stages: as long as one worker takes, and 2 (p - 1) messages of the values that cross the cuts; a rank is
idle for (p - 1)/p of the time.
Source: Dean et al., "Large Scale Distributed Deep Networks", NeurIPS 2012.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from paceline.context import Context, Strategy
from paceline.strategies.pipelining.program import Plan, names_in, train_in_pieces

__all__ = ["Layers"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layers(Strategy):
    """Each worker holds some layers of the model, and one works at a time."""

    replicates: ClassVar[tuple[str, ...]] = ("worker",)
    cuts_model: ClassVar[bool] = True
    holds_parts: ClassVar[bool] = True

    cuts: str = field(
        default="",
        metadata={"help": "layers to cut before, with + between them; left out: for about equal seconds"},
    )

    async def worker(self, ctx: Context) -> None:
        cuts = names_in(self.cuts)
        stages = len(cuts) + 1 if cuts else None
        await train_in_pieces(ctx, Plan(stages=stages, microbatches=1, order="gpipe", cuts=cuts))
