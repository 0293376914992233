"""What most orders have in common: some forwards first, then forwards and backwards in turn, then what is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from paceline.schedules.pipeline.actions import Action, Actions, Phase

__all__ = ["in_turns", "weights_later"]


def in_turns(forwards: Sequence[Action], backwards: Sequence[Action], first: int) -> Actions:
    """`first` forwards, then one forward and one backward in turn, then the backwards that are left."""
    first = min(first, len(forwards))
    turns = chain.from_iterable(zip(forwards[first:], backwards, strict=False))
    return (*forwards[:first], *turns, *backwards[len(forwards) - first :])


def weights_later(actions: Actions, lag: int) -> Actions:
    """Each backward in its two parts: the weights' follows the inputs' of the micro-batch that is `lag` later."""
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
