"""How many activations an order keeps: a forward adds one, the gradient of the weights lets go of it."""

from __future__ import annotations

from paceline.schedules.pipeline.actions import Actions, Order, Phase

__all__ = ["activations"]


def activations(order: Order) -> tuple[int, ...]:
    """The most that each rank keeps at one time, in units of one micro-batch in one stage."""
    return tuple(_peak(actions) for actions in order)


def _peak(actions: Actions) -> int:
    kept = peak = 0
    for action in actions:
        kept += (action.phase is Phase.FORWARD) - action.phase.gives_weights
        peak = max(peak, kept)
    return peak
