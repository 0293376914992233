"""Common structure of most orders: forward passes first, then forward and backward alternating, then the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from paceline.schedules.pipeline.actions import Action, Actions, Phase


def in_turns(forwards: Sequence[Action], backwards: Sequence[Action], first: int) -> Actions:
    """Return `first` forwards, then one forward and one backward alternating, then the remaining backwards."""
    first = min(first, len(forwards))
    turns = chain.from_iterable(zip(forwards[first:], backwards, strict=False))
    return (*forwards[:first], *turns, *backwards[len(forwards) - first :])


def weights_later(actions: Actions, lag: int) -> Actions:
    """Split each backward pass. The weight gradients of micro-batch i follow the input gradients of i + `lag`."""
    return tuple(_parted(actions, lag))


def _parted(actions: Actions, lag: int) -> Iterator[Action]:
    waiting: list[Action] = []
    for action in actions:
        if action.phase is not Phase.BACKWARD:
            yield action
            continue
        yield action._replace(phase=Phase.INPUTS)
        waiting.append(action._replace(phase=Phase.WEIGHTS))
        if len(waiting) > lag:
            yield waiting.pop(0)
    yield from waiting
