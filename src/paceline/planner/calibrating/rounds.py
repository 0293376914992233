"""Rounds of measurements on the ranks of a program, until a time limit. Each round measures everything once.

Other processes disturb single rounds. So all quantities are measured in turn, and the lower quartile of the rounds
counts: it is near the median on a quiet machine, and near the minimum on a busy one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

import torch

from paceline.collectives import broadcast
from paceline.context import Context

LEAST_ROUNDS = 3
MOST_ROUNDS = 40
_PATIENCE_S = 10.0
"""After this time, and after `LEAST_ROUNDS` times the limit, no round begins, even after few rounds."""

Times = dict[str, list[float]]
"""Seconds of each round, by the name of what was measured."""


def usual_s(seconds: Sequence[float]) -> float:
    """Return the lower quartile."""
    return sorted(seconds)[(len(seconds) - 1) // 4]


@dataclass(slots=True)
class Rounds:
    """Rounds until a time limit. All ranks do the same number of rounds: rank 0 decides."""

    ctx: Context
    limit_s: float
    on_round: Callable[[], object] = lambda: None
    taken: Times = field(default_factory=dict)

    async def __aiter__(self) -> AsyncIterator[int]:
        started_s = self.ctx.now()
        for number in range(MOST_ROUNDS):
            taken_s = self.ctx.now() - started_s
            has_few = number < LEAST_ROUNDS and taken_s <= max(_PATIENCE_S, LEAST_ROUNDS * self.limit_s)
            continues = torch.tensor([float(number == 0 or has_few or taken_s <= self.limit_s)])
            await broadcast(self.ctx.net, continues, root=0)
            if not continues.item():
                return
            if self.ctx.rank == 0:
                self.on_round()
            yield number

    def note(self, name: str, seconds: float) -> None:
        self.taken.setdefault(name, []).append(seconds)
