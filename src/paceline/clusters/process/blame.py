"""Find the rank that a stalled run is waiting for, from the status board.

A rank that exceeds its deadline names the rank that it waits for. That rank may wait for another one, and so on. The
chain ends at a rank that waits for no other rank (it computes, lacks a processor, is stopped or dead), or it forms a
cycle.
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
from paceline.links.operation import Activity


class ProcessState(StrEnum):
    """State of a rank's process in the operating system."""

    STOPPED = "is stopped by a signal"
    GONE = "has ended"
    SILENT = "gives no sign of life"
    RUNNABLE = "is running or ready to run"
    ASLEEP = "sleeps"


_CANNOT_GO_ON = (ProcessState.GONE, ProcessState.STOPPED, ProcessState.SILENT)
"""States in which a process makes no progress, most likely cause first."""


def life_of(pid: int) -> ProcessState:
    """Return the state of a process on this host."""
    state = "X"
    with contextlib.suppress(OSError, IndexError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return {
        "T": ProcessState.STOPPED,
        "t": ProcessState.STOPPED,
        "Z": ProcessState.GONE,
        "X": ProcessState.GONE,
        "R": ProcessState.RUNNABLE,
    }.get(state, ProcessState.ASLEEP)


def explain(error: DeadlineError, board: StatusBoard, life: Callable[[int], ProcessState]) -> DeadlineError:
    """Return the same error for the end of the chain: the rank at fault, its state, and the rank that waits for it."""
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
    """Return a waiting rank, the rank that it waits for, and so on, according to the status board."""
    return _chain(rank, board, lambda _rank: ProcessState.ASLEEP)


def _chain(rank: int, board: StatusBoard, life: Callable[[int], ProcessState]) -> list[int]:
    """Return the chain from a waiting rank to one that does not wait, or to one that is already in the chain."""
    chain = [rank]
    while len(chain) == len(set(chain)):
        awaited = _awaited_by(chain[-1], board)
        if not awaited:
            break
        chain.append(min(awaited, key=lambda other: _innocence(other, board, life)))
        if _ends_the_chain(chain[-1], board, life):
            break
    return chain


def ranks_behind(rank: int, board: StatusBoard) -> set[int]:
    """Return the running ranks at the ends of all chains from a rank. They wait for no other rank."""
    seen, unseen = {rank}, list(_awaited_by(rank, board))
    while unseen:
        other = unseen.pop()
        if other not in seen and board.status(other) is Status.RUNNING:
            seen.add(other)
            unseen += _awaited_by(other, board)
    return {other for other in seen - {rank} if not _waits(other, board)}


def _awaited_by(rank: int, board: StatusBoard) -> Sequence[int]:
    activity = board.activity(rank)
    if activity.awaits_several:
        return [r for r in range(board.ranks) if r != rank and board.status(r) is Status.RUNNING]
    return [] if activity.awaited is None else [activity.awaited]


def _ends_the_chain(rank: int, board: StatusBoard, life: Callable[[int], ProcessState]) -> bool:
    """Return whether the chain ends at this rank: it cannot make progress, or it waits for no other rank."""
    return _state_that_ends_it(rank, board, life) is not None or not _waits(rank, board)


def _state_that_ends_it(
    rank: int, board: StatusBoard, life: Callable[[int], ProcessState]
) -> ProcessState | None:
    """Return why a rank cannot make progress. None if it can, according to the system."""
    state = life(rank)
    # A rank that ended while it waited is not the cause: it reached the same deadline a moment earlier.
    is_victim = state is ProcessState.GONE and _waits(rank, board)
    return state if state in _CANNOT_GO_ON and not is_victim else None


def _is_it_a_deadlock(circle: Sequence[int], life: Callable[[int], ProcessState]) -> str:
    starved = [rank for rank in circle if life(rank) is ProcessState.RUNNABLE]
    return (
        f"rank {starved[0]} {ProcessState.RUNNABLE}" if starved else "a deadlock, or a message that was lost"
    )


def _waits(rank: int, board: StatusBoard) -> bool:
    activity = board.activity(rank)
    return activity.awaited is not None or activity.awaits_several


def _innocence(rank: int, board: StatusBoard, life: Callable[[int], ProcessState]) -> tuple[int, int, float]:
    """Return a sort key, smallest for the most likely cause: dead or stopped ranks, then the rank with the longest
    activity."""
    state = _state_that_ends_it(rank, board, life)
    order = len(_CANNOT_GO_ON) if state is None else _CANNOT_GO_ON.index(state)
    return order, int(_waits(rank, board)), board.activity(rank).since_s


def _what_it_does(rank: int, board: StatusBoard, life: Callable[[int], ProcessState]) -> str:
    seconds = time.monotonic() - board.activity(rank).since_s
    return f"rank {rank} {life(rank)}, for {seconds:.1f} s {_in_words(rank, board)}"


def _in_words(rank: int, board: StatusBoard) -> str:
    activity = board.activity(rank)
    whom = "any rank" if activity.awaits_several else f"rank {activity.awaited}"
    phrases = {
        Activity.send: f"send to {whom}",
        Activity.receive: f"receive from {whom}",
        Activity.barrier: "barrier",
        Activity.several: f"waiting for {whom}",
    }
    return f"{phrases.get(activity.doing, activity.doing.name)} in step {activity.step}"


def _how_the_others_wait(chain: Sequence[int]) -> list[str]:
    return [f"rank {a} waits for rank {b}" for a, b in itertools.pairwise(chain[:-1])]
