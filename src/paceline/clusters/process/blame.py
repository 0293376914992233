"""Which rank a run that stands still is waiting for, by what each rank says of itself on the status board.

A rank whose wait took too long names whom it waits for. That one may wait for another, and so on: the chain ends at a
rank that waits for nobody (it computes, is starved of a processor, is stopped or dead), or comes back to itself.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path

from paceline.clusters.process.status_board import Status, StatusBoard
from paceline.errors import DeadlineError
from paceline.links.operation import Doing

__all__ = ["Life", "chain_of", "explain", "life_of"]


class Life(StrEnum):
    """What the system knows of a rank's process."""

    STOPPED = "is stopped by a signal"
    GONE = "has ended"
    SILENT = "gives no sign of life"
    RUNNABLE = "has the processor, or waits for it"
    ASLEEP = "sleeps"


_CANNOT_GO_ON = (Life.GONE, Life.STOPPED, Life.SILENT)
"""The likeliest cause first."""


def life_of(pid: int) -> Life:
    """Of a process of this host."""
    state = "X"
    with contextlib.suppress(OSError, IndexError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return {"T": Life.STOPPED, "t": Life.STOPPED, "Z": Life.GONE, "X": Life.GONE, "R": Life.RUNNABLE}.get(
        state, Life.ASLEEP
    )


def explain(error: DeadlineError, board: StatusBoard, life: Callable[[int], Life]) -> DeadlineError:
    """The same error, but about the end of the chain: who waits for the rank at fault, and what is known of it."""
    if not 0 <= error.rank < board.ranks:
        return error
    chain = _chain(error.rank, board, life)
    if len(chain) < 2:
        return error
    *_, last, culprit = chain
    view = [_what_it_does(culprit, board, life), *_how_the_others_wait(chain)]
    if culprit in chain[:-1]:
        circle = chain[chain.index(culprit) :]
        view = [_is_it_a_deadlock(circle, life), " waits for ".join(f"rank {rank}" for rank in circle)]
    operation = error.operation if last == error.rank else _in_words(last, board)
    return DeadlineError(last, operation, f"rank {culprit}", error.deadline_s, "; ".join(view))


def chain_of(rank: int, board: StatusBoard) -> list[int]:
    """A rank that waits, the one that it waits for, and so on, as far as the ranks themselves know."""
    return _chain(rank, board, lambda _rank: Life.ASLEEP)


def _chain(rank: int, board: StatusBoard, life: Callable[[int], Life]) -> list[int]:
    """From a rank that waits to one that does not, or to one that is in the chain already."""
    chain = [rank]
    while len(chain) == len(set(chain)):
        awaited = _awaited_by(chain[-1], board)
        if not awaited:
            break
        chain.append(min(awaited, key=lambda other: _innocence(other, board, life)))
        if _ends_the_chain(chain[-1], board, life):
            break
    return chain


def _awaited_by(rank: int, board: StatusBoard) -> Sequence[int]:
    activity = board.activity(rank)
    if activity.awaits_several:
        return [r for r in range(board.ranks) if r != rank and board.status(r) is Status.RUNNING]
    return [] if activity.awaited is None else [activity.awaited]


def _ends_the_chain(rank: int, board: StatusBoard, life: Callable[[int], Life]) -> bool:
    """Whether the chain ends at this rank: it cannot go on, or it waits for nobody."""
    return _state_that_ends_it(rank, board, life) is not None or not _waits(rank, board)


def _state_that_ends_it(rank: int, board: StatusBoard, life: Callable[[int], Life]) -> Life | None:
    """Why a rank cannot go on. None: it can, as far as the system knows."""
    state = life(rank)
    # One that has ended while it waited was another victim: it gave up at the same deadline, a moment before.
    is_victim = state is Life.GONE and _waits(rank, board)
    return state if state in _CANNOT_GO_ON and not is_victim else None


def _is_it_a_deadlock(circle: Sequence[int], life: Callable[[int], Life]) -> str:
    starved = [rank for rank in circle if life(rank) is Life.RUNNABLE]
    return f"rank {starved[0]} {Life.RUNNABLE}" if starved else "a deadlock, or a message that was lost"


def _waits(rank: int, board: StatusBoard) -> bool:
    activity = board.activity(rank)
    return activity.awaited is not None or activity.awaits_several


def _innocence(rank: int, board: StatusBoard, life: Callable[[int], Life]) -> tuple[int, int, float]:
    """Smallest for the likeliest cause: who cannot go on, then who has waited for nobody the longest."""
    state = _state_that_ends_it(rank, board, life)
    order = len(_CANNOT_GO_ON) if state is None else _CANNOT_GO_ON.index(state)
    return order, int(_waits(rank, board)), board.activity(rank).since_s


def _what_it_does(rank: int, board: StatusBoard, life: Callable[[int], Life]) -> str:
    seconds = time.monotonic() - board.activity(rank).since_s
    return f"rank {rank} {life(rank)}, for {seconds:.1f} s {_in_words(rank, board)}"


def _in_words(rank: int, board: StatusBoard) -> str:
    activity = board.activity(rank)
    whom = "any rank" if activity.awaits_several else f"rank {activity.awaited}"
    phrases = {
        Doing.send: f"send to {whom}",
        Doing.receive: f"receive from {whom}",
        Doing.barrier: "barrier",
        Doing.several: f"waiting for {whom}",
    }
    return f"{phrases.get(activity.doing, activity.doing.name)} in step {activity.step}"


def _how_the_others_wait(chain: Sequence[int]) -> list[str]:
    return [f"rank {a} waits for rank {b}" for a, b in itertools.pairwise(chain[:-1])]
