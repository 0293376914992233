"""Lets all ranks of an order go on, each as far as it can.

An action waits for the message that it needs and for nothing else: sending never blocks, since a program hands its
messages over and goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from paceline.schedules.pipeline.actions import Action, Order, Phase, stage_of

__all__ = ["Needed", "Walk"]


class Needed(NamedTuple):
    """A message, by the stage that makes it."""

    forward: bool
    """Outputs of a forward; else gradients of a backward's inputs."""
    micro: int
    stage: int


class Walk:
    """All ranks of an order, as far as they have come."""

    def __init__(self, order: Order, chunks: int) -> None:
        self._order = order
        self._stages = len(order) * chunks
        self.reached = [0] * len(order)
        """How many actions of each rank are done."""
        self._made: set[Needed] = set()
        self._waiting: dict[Needed, int] = {}

    def to_the_end(self, visit: Callable[[int, int, Action, Needed | None], None]) -> None:
        """Until nobody can go on: at the end of the order, or in a deadlock.

        `visit(rank, number, action, needed)` is called for each action, after those that it needs.
        """
        able = deque(range(len(self._order)))
        while able:
            rank = able.popleft()
            for message in self._run(rank, visit):
                if message in self._waiting:
                    able.append(self._waiting.pop(message))

    def _run(self, rank: int, visit: Callable[[int, int, Action, Needed | None], None]) -> Sequence[Needed]:
        """One rank, until it must wait. Returns the messages that it made."""
        made: list[Needed] = []
        actions = self._order[rank]
        while self.reached[rank] < len(actions):
            action = actions[self.reached[rank]]
            needed = self.needed(rank, action)
            if needed is not None and needed not in self._made:
                self._waiting[needed] = rank
                break
            visit(rank, self.reached[rank], action, needed)
            self.reached[rank] += 1
            if (message := self.message(rank, action)) is not None:
                made.append(message)
                self._made.add(message)
        return made

    def needed(self, rank: int, action: Action) -> Needed | None:
        """The message that an action waits for, if it is not the first or the last stage's own."""
        stage = stage_of(rank, action.chunk, len(self._order))
        if action.phase is Phase.FORWARD:
            return Needed(True, action.micro, stage - 1) if stage else None
        if action.phase.gives_inputs and stage + 1 < self._stages:
            return Needed(False, action.micro, stage + 1)
        return None

    def message(self, rank: int, action: Action) -> Needed | None:
        """The message that an action makes. That of the last forward or the first backward is for nobody."""
        stage = stage_of(rank, action.chunk, len(self._order))
        if action.phase is Phase.WEIGHTS:
            return None
        return Needed(action.phase is Phase.FORWARD, action.micro, stage)
