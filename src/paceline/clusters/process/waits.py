"""How a rank of the local world waits: it polls, sleeps on its bell, and looks whether those it waits for are there.

Everything that was started goes on meanwhile.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from typing import Any

from paceline.clusters.process.blame import Life, chain_of, explain
from paceline.clusters.process.operations import Background
from paceline.clusters.process.status_board import Status, StatusBoard
from paceline.errors import Cancelled, DeadlineError, PeerLost
from paceline.links import clock
from paceline.links.operation import Doing, Operation
from paceline.links.tcp import TcpEndpoint

__all__ = ["Waits"]

_SPIN_S = 50e-6  # about what it costs to sleep and be woken; longer would starve ranks that share this core
_LAST_WORDS_S = 2.0  # after a silence of this length nothing more is on its way in the network
_PATIENCE_S = 0.5  # a rank that sleeps checks this often that the others are still there


class Waits:
    """What one rank has under way, and how it waits for it."""

    def __init__(
        self, rank: int, board: StatusBoard, deadline_s: float, endpoint: TcpEndpoint | None = None
    ) -> None:
        """`endpoint`: of a network, where a message may arrive after the news that its sender has ended."""
        self._rank = rank
        self._endpoint = endpoint
        self._ended_s: dict[int, float] = {}  # since when a rank is known to have ended
        self._board = board
        self._bells = board.bells
        self._deadline_s = deadline_s
        self._running: list[Operation[Any]] = []
        self._patience: dict[Operation[Any], _Patience] = {}  # for what was started and has begun to arrive
        self._known_lost: set[int] = set()
        self._step = 0
        self._spin_s = _SPIN_S if board.ranks <= len(os.sched_getaffinity(0)) else 0.0

    @property
    def under_way(self) -> Sequence[Operation[Any]]:
        """What was started and has not ended."""
        return self._running

    def do_without(self, rank: int) -> None:
        """Do not wait until messages to this rank are delivered: the run goes on without it."""
        self._known_lost.add(rank)

    def begin_leg(self) -> None:
        """The new program knows of no loss yet, and is to be told again."""
        self._running = []  # messages to lost ranks
        self._known_lost.clear()

    def begin(self, operation: Operation[Any]) -> None:
        """Let an operation go on whenever this rank waits."""
        if not operation.poll() or _failed_unheard(operation):
            self._running.append(operation)

    def until_done(self, operation: Operation[Any], step: int) -> None:
        """Poll for a moment, then sleep on this rank's bell until the operation is done."""
        try:
            if not (self._spin_s and self._spin(operation)):
                self._sleep_until_done(operation, step)
        except BaseException:
            # Nobody can wait for it any more, unless it was started: it would take a message that is meant for
            # a later receive.
            if operation not in self._running:
                operation.cancel()
            raise

    def _sleep_until_done(self, operation: Operation[Any], step: int) -> None:
        self._step = step
        self._board.set_step(self._rank, step)
        patience = _Patience(self._deadline_s)
        awaited: tuple[int, ...] | None = None
        while True:
            self._bells.listen(self._rank)
            if self._poll(operation):
                self._bells.ignore(self._rank)
                self._board.note_doing(self._rank, Doing.working)
                return
            if awaited != (awaited := operation.awaited()):
                self._board.note_doing(self._rank, operation.doing, awaited)
            self._check_others(operation)
            self._check_background()
            # A wait for nobody may be long: a long computation is no failure.
            if patience.is_over(operation) and self._still_awaited(operation) and _may_be_late(operation):
                if self._will_be_given_up() and patience.renew():
                    continue
                raise self._deadline_error(operation)
            self._bells.sleep(self._rank, self._until_next_timer(operation, patience.left_s()))

    def settle(self, step: int) -> None:
        """At the end of the program: let what is still under way come to its end."""
        for operation in list(self._running):
            if operation.awaited() and set(operation.awaited()) <= self._known_lost:
                continue  # messages to lost ranks are lost too
            if not operation.done:
                self.until_done(operation, step)
            if not isinstance(operation.error, Cancelled):
                operation.take()

    def _spin(self, operation: Operation[Any]) -> bool:
        until_s = time.monotonic() + self._spin_s
        while time.monotonic() < until_s:
            if self._poll(operation):
                return True
        return False

    def _poll(self, operation: Operation[Any]) -> bool:
        """Let everything that is under way go on; tell whether this operation is done."""
        if self._running:
            for other in self._running:
                other.poll()
            ended = [other for other in self._running if other.done]
            if ended:
                self._running = [other for other in self._running if not other.done]
                self._raise_unheard(ended)
        return operation.poll()

    @staticmethod
    def _raise_unheard(ended: Sequence[Operation[Any]]) -> None:
        """Raise a background program's error here: this program may be waiting for what that one will never do."""
        for operation in ended:
            if _failed_unheard(operation):
                operation.take()

    def _until_next_timer(self, operation: Operation[Any], limit_s: float) -> float:
        due_s = min(other.due_s() for other in (operation, *self._running))
        return max(0.0, min(limit_s, due_s - clock.now()))

    def _check_others(self, operation: Operation[Any]) -> None:
        awaited = operation.awaited()
        gone = [rank for rank in awaited if self._board.status(rank) != Status.RUNNING]
        # A rank that ended well may have sent this message before it ended. So poll once more, now that it has ended.
        if not gone or self._poll(operation):
            return
        # The poll may have changed that: a barrier may go on without lost ranks.
        gone = [rank for rank in gone if rank in operation.awaited()]
        # A wait for any of several programs is told of each loss once; the program may then wait for the others.
        known = self._known_lost if len(awaited) > 1 or self._may_hear_itself(operation) else set()
        lost = [r for r in gone if self._board.status(r) == Status.LOST and r not in known]
        if lost or (len(gone) == len(awaited) and self._hopes_for_nothing(operation, gone)):
            rank = (lost or gone)[0]
            self._known_lost.add(rank)
            operation.cancel()  # even if it was started: what it waits for will not come
            reason = "" if self._board.status(rank) == Status.LOST else "it has ended its program"
            raise PeerLost(rank, reason, f"rank {self._rank} was waiting in {operation} in step {self._step}")

    def _check_background(self) -> None:
        """Raise if something that was started has begun to arrive, and then made no progress for too long."""
        self._tell_background_of_losses()
        for other in self._running:
            if other.progress() and not other.done:
                patience = self._patience.setdefault(other, _Patience(self._deadline_s))
                if patience.is_over(other) and self._still_awaited(other):
                    raise self._deadline_error(other)
        if self._patience:
            self._patience = {
                other: self._patience[other] for other in self._running if other in self._patience
            }

    def _tell_background_of_losses(self) -> None:
        """Raise PeerLost in background programs that wait for lost ranks alone: for the rest of a last message, say.

        Not in those that wait for any rank: the program in the foreground may still send to them.
        """
        for other in self._running:
            if not isinstance(other, Background) or other.takes_own():
                continue
            awaited = other.awaited()
            in_vain = awaited and all(self._board.status(rank) == Status.LOST for rank in awaited)
            if in_vain and not other.poll() and other.awaited() == awaited:
                where = f"rank {self._rank} was waiting in {other} in step {self._step}"
                other.throw(PeerLost(awaited[0], "", where))

    def _hopes_for_nothing(self, operation: Operation[Any], ended: Sequence[int]) -> bool:
        """Whether no message can come any more, now that all ranks waited for have ended or are known to be lost."""
        under_way = operation.due_s() < math.inf or self._may_hear_from(ended)  # on a slow link
        from_here = any(isinstance(other, Background) for other in self._running)
        return not under_way and not from_here

    def _may_hear_itself(self, operation: Operation[Any]) -> bool:
        """Whether another program of this rank may send what an operation waits for."""
        others = (other for other in self._running if other is not operation)
        return operation.takes_own() and any(isinstance(other, Background) for other in others)

    def _still_awaited(self, operation: Operation[Any]) -> list[int]:
        """The ranks that an operation waits for, without those that this program goes on without."""
        return [rank for rank in operation.awaited() if rank not in self._known_lost]

    def _will_be_given_up(self) -> bool:
        """Whether those who are waited for wait for a rank that this program goes on without.

        They will give it up too: since their wait has begun, within a deadline from now.
        """
        return not self._known_lost.isdisjoint(chain_of(self._rank, self._board))

    def _may_hear_from(self, ended: Sequence[int]) -> bool:
        """Whether something that these ranks said may still come from the network."""
        if self._endpoint is None:
            return False
        now_s = time.monotonic()
        ended_s = max(self._ended_s.setdefault(rank, now_s) for rank in ended)
        return now_s < max(ended_s, self._endpoint.heard_s) + _LAST_WORDS_S

    def _deadline_error(self, operation: Operation[Any]) -> DeadlineError:
        ranks = ", ".join(map(str, self._still_awaited(operation)))
        error = DeadlineError(
            self._rank, f"{operation} in step {self._step}", f"rank {ranks}", self._deadline_s
        )
        # Only the driver knows how the processes are.
        return explain(error, self._board, lambda _rank: Life.ASLEEP)


class _Patience:
    """How long a wait may still last. Any progress gives it the whole time again."""

    __slots__ = ("_deadline_s", "_is_renewed", "_progress", "_until_s")

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._until_s = time.monotonic() + deadline_s
        self._progress = 0
        self._is_renewed = False

    def renew(self) -> bool:
        """Wait for another deadline. It can be done once: tell whether it was."""
        if self._is_renewed:
            return False
        self._is_renewed = True
        self._until_s = time.monotonic() + self._deadline_s
        return True

    def is_over(self, operation: Operation[Any]) -> bool:
        progress = operation.progress()
        if progress != self._progress:
            self._progress = progress
            self._until_s = time.monotonic() + self._deadline_s
        return time.monotonic() >= self._until_s

    def left_s(self) -> float:
        """Seconds until it is time to look again."""
        left_s = self._until_s - time.monotonic()
        return min(left_s, _PATIENCE_S) if left_s > 0 else _PATIENCE_S


def _may_be_late(operation: Operation[Any]) -> bool:
    """Whether it is not merely on a slow link, which is emulated."""
    return operation.due_s() == math.inf or clock.stands()


def _failed_unheard(operation: Operation[Any]) -> bool:
    if not isinstance(operation, Background) or operation.heard or operation.error is None:
        return False
    return not isinstance(operation.error, Cancelled)
