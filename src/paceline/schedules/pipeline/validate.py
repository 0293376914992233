"""Proves an order right: each micro-batch does everything once, in its order, and nobody waits for ever."""

from __future__ import annotations

from itertools import product

from paceline.errors import PacelineError
from paceline.schedules.pipeline.actions import Action, Actions, Order, Phase
from paceline.schedules.pipeline.walking import Needed, Walk

__all__ = ["OrderError", "validate"]

_BEFORE = {"B": "F", "W": "B"}


class OrderError(PacelineError):
    """An order is wrong. Names the rank, the action and what is wrong with it."""

    def __init__(self, rank: int, action: Action | None, problem: str) -> None:
        super().__init__(rank, action, problem)
        self.rank = rank
        self.action = action
        self.problem = problem

    def __str__(self) -> str:
        where = f"rank {self.rank}" if self.action is None else f"rank {self.rank}, {self.action}"
        return f"{where}: {self.problem}"


def validate(order: Order, microbatches: int, chunks: int = 1) -> None:
    """Raise `OrderError` unless every rank takes every micro-batch forward and backward through each of its chunks.

    A forward goes before its backward, and the gradient of the inputs before that of the weights. Since every stage
    makes and takes each message once, sends and receives match; that nobody waits for ever is shown by running it.
    """
    for rank, actions in enumerate(order):
        for action in actions:
            if not (0 <= action.micro < microbatches and 0 <= action.chunk < chunks):
                raise OrderError(rank, action, f"there are {microbatches} micro-batches and {chunks} chunks")
        _check_own(rank, actions, microbatches, chunks)
    _check_waits(order, chunks)


def _check_own(rank: int, actions: Actions, microbatches: int, chunks: int) -> None:
    """One rank's list by itself. A backward in one counts as its two parts."""
    done: set[tuple[str, int, int]] = set()
    for action in actions:
        for part in action.phase.value:
            before = _BEFORE.get(part)
            if before is not None and (before, action.micro, action.chunk) not in done:
                missing = Action(Phase(before), action.micro, action.chunk)
                raise OrderError(rank, action, f"comes before {missing}")
            if (part, action.micro, action.chunk) in done:
                raise OrderError(rank, action, "is done twice")
            done.add((part, action.micro, action.chunk))
    for part, micro, chunk in product("FBW", range(microbatches), range(chunks)):
        if (part, micro, chunk) not in done:
            raise OrderError(rank, Action(Phase(part), micro, chunk), "is never done")


def _check_waits(order: Order, chunks: int) -> None:
    walk = Walk(order, chunks)
    walk.to_the_end(lambda rank, number, action, needed: None)
    for rank, actions in enumerate(order):
        if walk.reached[rank] < len(actions):
            _raise_deadlock(order, walk, rank)


def _raise_deadlock(order: Order, walk: Walk, rank: int) -> None:
    """Follow who waits for whom until somebody comes up again: that is the cycle."""
    waits: dict[int, Action] = {}
    while rank not in waits:
        waits[rank] = order[rank][walk.reached[rank]]
        needed = walk.needed(rank, waits[rank])
        assert isinstance(needed, Needed)
        rank = needed.stage % len(order)
    cycle = list(waits)[list(waits).index(rank) :]
    words = " waits for ".join(f"rank {each} in {waits[each]}" for each in cycle)
    raise OrderError(rank, waits[rank], f"deadlock: {words} waits for rank {rank}")
