"""Validates a pipeline schedule: each micro-batch passes every stage once, in order, and no rank deadlocks.

`Walk` advances all ranks of an order, each as far as possible. An action waits only for the message that it needs. A
send never blocks, because programs send in the background.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import product
from typing import Literal, NamedTuple

from paceline.errors import PacelineError
from paceline.schedules.pipeline.actions import Action, Actions, Order, Phase, stage_of

_BEFORE = {"B": "F", "W": "B"}


Fault = Literal["range", "early", "twice", "never", "deadlock"]
"""Kinds of faults: a micro-batch or chunk that does not exist, an action before another one that it needs, an
action that is done twice or never, and ranks that wait for each other."""


class OrderError(PacelineError):
    """An invalid order. The message names the rank, the action and the problem."""

    code = "PL-041"

    def __init__(self, rank: int, action: Action | None, problem: str, fault: Fault) -> None:
        super().__init__(rank, action, problem, fault)
        self.rank = rank
        self.action = action
        self.problem = problem
        self.fault = fault

    def __str__(self) -> str:
        where = f"rank {self.rank}" if self.action is None else f"rank {self.rank}, {self.action}"
        return f"{where}: {self.problem}"


def validate(order: Order, microbatches: int, chunks: int = 1) -> None:
    """Raise `OrderError` unless every rank takes every micro-batch forward and backward through each of its chunks.

    A forward pass must precede its backward pass, and the gradient of the inputs must precede that of the weights.
    Every stage sends and receives each message once, so sends and receives match. Running the order detects
    deadlocks.
    """
    for rank, actions in enumerate(order):
        for action in actions:
            if not (0 <= action.micro < microbatches and 0 <= action.chunk < chunks):
                raise OrderError(
                    rank, action, f"there are {microbatches} micro-batches and {chunks} chunks", "range"
                )
        _check_own(rank, actions, microbatches, chunks)
    _check_waits(order, chunks)


def _check_own(rank: int, actions: Actions, microbatches: int, chunks: int) -> None:
    """Check the actions of one rank. A combined backward counts as its two parts."""
    done: set[tuple[str, int, int]] = set()
    for action in actions:
        for part in action.phase.value:
            before = _BEFORE.get(part)
            if before is not None and (before, action.micro, action.chunk) not in done:
                missing = Action(Phase(before), action.micro, action.chunk)
                raise OrderError(rank, action, f"comes before {missing}", "early")
            if (part, action.micro, action.chunk) in done:
                raise OrderError(rank, action, "is done twice", "twice")
            done.add((part, action.micro, action.chunk))
    for part, micro, chunk in product("FBW", range(microbatches), range(chunks)):
        if (part, micro, chunk) not in done:
            raise OrderError(rank, Action(Phase(part), micro, chunk), "is never done", "never")


def _check_waits(order: Order, chunks: int) -> None:
    walk = Walk(order, chunks)
    walk.to_the_end(lambda rank, number, action, needed: None)
    for rank, actions in enumerate(order):
        if walk.reached[rank] < len(actions):
            _raise_deadlock(order, walk, rank)


def _raise_deadlock(order: Order, walk: Walk, rank: int) -> None:
    """Return the cycle of waiting ranks: follow the waits from rank to rank until a rank repeats."""
    waits: dict[int, Action] = {}
    while rank not in waits:
        waits[rank] = order[rank][walk.reached[rank]]
        needed = walk.needed(rank, waits[rank])
        assert isinstance(needed, Needed)
        rank = needed.stage % len(order)
    cycle = list(waits)[list(waits).index(rank) :]
    words = " waits for ".join(f"rank {each} in {waits[each]}" for each in cycle)
    raise OrderError(rank, waits[rank], f"deadlock: {words} waits for rank {rank}", "deadlock")


class Needed(NamedTuple):
    """A message, identified by the stage that produces it."""

    forward: bool
    """True for outputs of a forward pass, False for gradients of a backward pass's inputs."""
    micro: int
    stage: int


class Walk:
    """Progress of each rank through its actions of a pipeline order."""

    def __init__(self, order: Order, chunks: int) -> None:
        self._order = order
        self._stages = len(order) * chunks
        self.reached = [0] * len(order)
        """Number of completed actions of each rank."""
        self._made: set[Needed] = set()
        self._waiting: dict[Needed, int] = {}

    def to_the_end(self, visit: Callable[[int, int, Action, Needed | None], None]) -> None:
        """Advance until no rank can continue: at the end of the order, or in a deadlock.

        `visit(rank, number, action, needed)` is called for each action, after the actions that it depends on.
        """
        able = deque(range(len(self._order)))
        while able:
            rank = able.popleft()
            for message in self._run(rank, visit):
                if message in self._waiting:
                    able.append(self._waiting.pop(message))

    def _run(self, rank: int, visit: Callable[[int, int, Action, Needed | None], None]) -> Sequence[Needed]:
        """Advance one rank until it must wait. Return the messages that it produced."""
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
        """Return the message that an action waits for; None if it waits for none."""
        stage = stage_of(rank, action.chunk, len(self._order))
        if action.phase is Phase.FORWARD:
            return Needed(True, action.micro, stage - 1) if stage else None
        if action.phase.gives_inputs and stage + 1 < self._stages:
            return Needed(False, action.micro, stage + 1)
        return None

    def message(self, rank: int, action: Action) -> Needed | None:
        """Return the message that an action produces; None for a weight gradient. At the ends it is unused."""
        stage = stage_of(rank, action.chunk, len(self._order))
        if action.phase is Phase.WEIGHTS:
            return None
        return Needed(action.phase is Phase.FORWARD, action.micro, stage)
