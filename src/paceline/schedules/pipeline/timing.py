"""When each action of an order runs.

A rank begins an action when the one before has ended and the message for it is there. A message arrives `latency_s`
after its action has ended, and takes no other time; between two stages of one rank there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paceline.schedules.pipeline.actions import Action, Order, stage_of
from paceline.schedules.pipeline.walking import Needed, Walk

__all__ = ["OrderTiming", "time_order"]

Seconds = Callable[[Action, int], float]
"""(action, stage) -> seconds"""


@dataclass(frozen=True, slots=True)
class OrderTiming:
    """When each action of each rank begins and ends."""

    starts_s: tuple[tuple[float, ...], ...]
    ends_s: tuple[tuple[float, ...], ...]

    @property
    def makespan_s(self) -> float:
        """From the first start to the last end."""
        return max(ends[-1] for ends in self.ends_s) - min(starts[0] for starts in self.starts_s)

    @property
    def cost_s(self) -> float:
        """The longest time that a rank is at it, from its first start to its last end."""
        return max(ends[-1] - starts[0] for starts, ends in zip(self.starts_s, self.ends_s, strict=True))

    @property
    def busy_s(self) -> tuple[float, ...]:
        """How long each rank computes."""
        pairs = zip(self.starts_s, self.ends_s, strict=True)
        return tuple(sum(b - a for a, b in zip(starts, ends, strict=True)) for starts, ends in pairs)

    @property
    def bubble(self) -> float:
        """The share of `cost_s` in which ranks do not compute, over all of them."""
        return 1 - sum(self.busy_s) / len(self.busy_s) / self.cost_s


def time_order(order: Order, seconds: Seconds, *, latency_s: float = 0.0, chunks: int = 1) -> OrderTiming:
    """Time a valid order, whose actions take what `seconds` says."""
    ranks = len(order)
    starts: list[list[float]] = [[] for _ in order]
    ends: list[list[float]] = [[] for _ in order]
    made_s: dict[Needed, float] = {}
    walk = Walk(order, chunks)

    def visit(rank: int, number: int, action: Action, needed: Needed | None) -> None:
        start_s = ends[rank][-1] if number else 0.0
        if needed is not None:
            away = needed.stage % ranks != rank
            start_s = max(start_s, made_s[needed] + (latency_s if away else 0.0))
        end_s = start_s + seconds(action, stage_of(rank, action.chunk, ranks))
        starts[rank].append(start_s)
        ends[rank].append(end_s)
        if (message := walk.message(rank, action)) is not None:
            made_s[message] = end_s

    walk.to_the_end(visit)
    return OrderTiming(tuple(map(tuple, starts)), tuple(map(tuple, ends)))
