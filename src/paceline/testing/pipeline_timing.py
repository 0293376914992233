"""The time at which each action of a pipeline order runs, and the activations that the order stores.

A rank starts an action when its previous action has ended and the needed message has arrived. A message arrives
`latency_s` after its action has ended, and takes no other time. Between two stages of one rank it takes no time.
A forward pass stores an activation, and the weight gradient frees it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paceline.schedules.pipeline.actions import Action, Actions, Order, Phase, stage_of
from paceline.testing.pipeline_orders import Needed, Walk

Seconds = Callable[[Action, int], float]
"""(action, stage) -> seconds"""


@dataclass(frozen=True, slots=True)
class OrderTiming:
    """Start and end of each action of each rank."""

    starts_s: tuple[tuple[float, ...], ...]
    ends_s: tuple[tuple[float, ...], ...]

    @property
    def makespan_s(self) -> float:
        """Time from the first start to the last end."""
        return max(ends[-1] for ends in self.ends_s) - min(starts[0] for starts in self.starts_s)

    @property
    def cost_s(self) -> float:
        """Time from the start of a rank's first pass to the end of its last pass, for the slowest rank."""
        return max(ends[-1] - starts[0] for starts, ends in zip(self.starts_s, self.ends_s, strict=True))

    @property
    def busy_s(self) -> tuple[float, ...]:
        """Compute time of each rank."""
        pairs = zip(self.starts_s, self.ends_s, strict=True)
        return tuple(sum(b - a for a, b in zip(starts, ends, strict=True)) for starts, ends in pairs)

    @property
    def bubble(self) -> float:
        """Mean fraction of `cost_s` in which a rank does not compute."""
        return 1 - sum(self.busy_s) / len(self.busy_s) / self.cost_s


def time_order(order: Order, seconds: Seconds, *, latency_s: float = 0.0, chunks: int = 1) -> OrderTiming:
    """Time a valid order. `seconds` returns the duration of an action."""
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


def activations(order: Order) -> tuple[int, ...]:
    """Return the peak number of stored activations of each rank, in units of one micro-batch in one stage."""
    return tuple(_peak(actions) for actions in order)


def _peak(actions: Actions) -> int:
    kept = peak = 0
    for action in actions:
        kept += (action.phase is Phase.FORWARD) - action.phase.gives_weights
        peak = max(peak, kept)
    return peak
