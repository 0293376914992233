"""Waiting of a local rank: it polls, sleeps on its bell, and checks that the awaited ranks are alive.

All started operations advance during a wait.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from paceline.clusters.base.members import MembersChanged
from paceline.clusters.process.blame import ProcessState, chain_of, explain
from paceline.clusters.process.operations import Background
from paceline.clusters.process.patience import Patience
from paceline.clusters.process.status_board import Status, StatusBoard
from paceline.errors import Cancelled, DeadlineError, PeerLost
from paceline.links import clock
from paceline.links.operation import Activity, Operation
from paceline.links.tcp import TcpEndpoint
from paceline.system import interrupts

_SPIN_S = 50e-6  # about the cost of sleeping and waking; longer would starve ranks that share this core
_LAST_WORDS_S = 2.0  # after a silence of this length no more messages are in flight


class Waits:
    """Operations in flight on one rank, and its waits for them."""

    def __init__(
        self, rank: int, board: StatusBoard, deadline_s: float, endpoint: TcpEndpoint | None = None
    ) -> None:
        """Create the waits of a rank. Pass `endpoint` on a network: messages may arrive after their sender has
        ended."""
        self._rank = rank
        self._endpoint = endpoint
        self._ended_s: dict[int, float] = {}  # when this rank first saw that a rank had ended
        self._board = board
        self._bells = board.bells
        self._deadline_s = deadline_s
        self._running: list[Operation[Any]] = []
        self._patience: dict[Operation[Any], Patience] = {}  # for started operations that are arriving
        self._known_lost: set[int] = set()
        self._step = 0
        self.departed: Callable[[Operation[Any]], Iterable[int]] = lambda _operation: ()
        """Returns ranks that will not send what an operation waits for, although their processes continue."""
        self.members_changed: Callable[[], bool] = lambda: False
        """Returns whether the members of the run have changed. All waits then end."""
        self.report_late: Callable[[], bool] = lambda: False
        """Reports a reached deadline. Returns whether the wait may continue, because a stopped rank was ended."""
        self._spin_s = _SPIN_S if board.ranks <= len(os.sched_getaffinity(0)) else 0.0

    @property
    def under_way(self) -> Sequence[Operation[Any]]:
        """Operations that have been started and have not ended."""
        return self._running

    def do_without(self, rank: int) -> None:
        """Do not wait for the delivery of messages to this rank: the run continues without it."""
        self._known_lost.add(rank)

    def begin_generation(self) -> None:
        """Forget known losses: the new program has not been notified of any, and must be notified again."""
        self._running = []  # messages to lost ranks
        self._known_lost.clear()

    def abandon(self) -> None:
        """Drop all operations in flight. Their links are not used again."""
        for operation in self._running:
            if isinstance(operation, Background):
                operation.close()
            elif operation.doing is Activity.compute:
                operation.cancel()
        self._running = []

    def begin(self, operation: Operation[Any]) -> None:
        """Start an operation. It advances whenever this rank waits."""
        if not operation.poll() or _failed_unheard(operation):
            self._running.append(operation)

    def until_done(self, operation: Operation[Any], step: int) -> None:
        """Poll for a short time, then sleep on this rank's bell until the operation is done."""
        try:
            if not (self._spin_s and self._spin(operation)):
                self._sleep_until_done(operation, step)
        except BaseException as error:
            if isinstance(error, PeerLost) and self.members_changed():
                raise MembersChanged from None
            # Unless it was started, no program can wait for it any more. It would take a message that is meant for a
            # later receive.
            if operation not in self._running:
                operation.cancel()
            raise

    def _sleep_until_done(self, operation: Operation[Any], step: int) -> None:
        self._step = step
        self._board.set_step(self._rank, step)
        patience = self._new_patience()
        awaited: tuple[int, ...] | None = None
        while True:
            interrupts.safe_point()  # a launched process is its own driver
            self._bells.listen(self._rank)
            if self._poll(operation):
                self._bells.ignore(self._rank)
                self._board.note_doing(self._rank, Activity.working)
                return
            if self.members_changed():
                raise MembersChanged
            if awaited != (awaited := operation.awaited()):
                self._board.note_doing(self._rank, operation.doing, awaited)
            self._check_others(operation)
            self._check_background()
            # A wait for no other rank may be long: a long computation is no failure.
            if patience.is_over(operation) and self._may_time_out(operation):
                if self._will_be_given_up() and patience.renew():
                    continue
                if self._is_excused():
                    patience = self._new_patience()
                    continue
                raise self._deadline_error(operation, patience)
            self._bells.sleep(self._rank, self._until_next_timer(operation, patience.left_s()))

    def _is_excused(self) -> bool:
        """Return whether a wait may continue after its deadline: a stopped rank has been ended, now or before."""
        return self.report_late() or self.members_changed()

    def settle(self, step: int) -> None:
        """At the end of the program, wait until all operations in flight have ended."""
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
        """Advance all operations in flight. Return whether this operation is done."""
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
        """Raise a background program's error here. This program may be waiting for a result of the failed one."""
        for operation in ended:
            if _failed_unheard(operation):
                operation.take()

    def _until_next_timer(self, operation: Operation[Any], limit_s: float) -> float:
        due_s = min(other.due_s() for other in (operation, *self._running))
        return max(0.0, min(limit_s, due_s - clock.now()))

    def _check_departed(self, operation: Operation[Any]) -> None:
        """Raise PeerLost once for each rank that has departed."""
        for rank in self.departed(operation):
            if rank in self._known_lost:
                continue
            if self._poll(operation):
                return
            self._known_lost.add(rank)
            operation.cancel()
            raise PeerLost(rank, "it takes part no longer", f"rank {self._rank} was waiting in {operation}")

    def _check_others(self, operation: Operation[Any]) -> None:
        self._check_departed(operation)
        awaited = operation.awaited()
        gone = [rank for rank in awaited if self._board.status(rank) != Status.RUNNING]
        # A rank that ended normally may have sent this message before it ended. So poll once more.
        if not gone or self._poll(operation):
            return
        # The poll may have changed the awaited ranks: a barrier may continue without lost ranks.
        gone = [rank for rank in gone if rank in operation.awaited()]
        # A wait for several ranks raises each loss once. The program may then wait for the others.
        known = self._known_lost if len(awaited) > 1 or self._may_hear_itself(operation) else set()
        lost = [r for r in gone if self._board.status(r) == Status.LOST and r not in known]
        if lost or (len(gone) == len(awaited) and self._hopes_for_nothing(operation, gone)):
            rank = (lost or gone)[0]
            self._known_lost.add(rank)
            operation.cancel()  # even if it was started: its message will not arrive
            reason = "" if self._board.status(rank) == Status.LOST else "it has ended its program"
            raise PeerLost(rank, reason, f"rank {self._rank} was waiting in {operation} in step {self._step}")

    def _check_background(self) -> None:
        """Raise an error if a started operation has begun to arrive and then made no progress for too long."""
        self._tell_background_of_losses()
        for other in self._running:
            if other.progress() and not other.done:
                patience = self._patience.setdefault(other, self._new_patience())
                if patience.is_over(other) and self._still_awaited(other):
                    if not self._is_excused():
                        raise self._deadline_error(other, patience)
                    self._patience[other] = self._new_patience()
        if self._patience:
            self._patience = {
                other: self._patience[other] for other in self._running if other in self._patience
            }

    def _tell_background_of_losses(self) -> None:
        """Raise PeerLost in background programs that wait only for lost ranks, such as for the rest of a last message.

        Skip programs that wait for any rank: the foreground program may still send to them.
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
        """Return whether no message can arrive, now that all awaited ranks have ended or are known to be lost."""
        under_way = operation.due_s() < math.inf or self._may_hear_from(ended)  # on a slow link
        from_here = any(isinstance(other, Background) for other in self._running)
        return not under_way and not from_here

    def _may_hear_itself(self, operation: Operation[Any]) -> bool:
        """Return whether another program of this rank may send the awaited message."""
        others = (other for other in self._running if other is not operation)
        return operation.takes_own() and any(isinstance(other, Background) for other in others)

    def _still_awaited(self, operation: Operation[Any]) -> list[int]:
        """Return the ranks that an operation waits for, except those that the program has given up."""
        return [rank for rank in operation.awaited() if rank not in self._known_lost]

    def _may_time_out(self, operation: Operation[Any]) -> bool:
        """Return whether a wait has a deadline. A wait for an abandoned rank has one if the driver has not ended it."""
        is_running = any(self._board.status(rank) is Status.RUNNING for rank in operation.awaited())
        return bool(is_running or self._still_awaited(operation)) and _may_be_late(operation)

    def _will_be_given_up(self) -> bool:
        """Return whether the awaited ranks wait for a rank that this program continues without.

        They will abandon it too, within one deadline from now, because their wait has already begun.
        """
        return not self._known_lost.isdisjoint(chain_of(self._rank, self._board))

    def _may_hear_from(self, ended: Sequence[int]) -> bool:
        """Return whether messages of these ranks may still arrive from the network."""
        if self._endpoint is None:
            return False
        now_s = time.monotonic()
        ended_s = max(self._ended_s.setdefault(rank, now_s) for rank in ended)
        return now_s < max(ended_s, self._endpoint.heard_s) + _LAST_WORDS_S

    def _new_patience(self) -> Patience:
        return Patience(self._deadline_s, lambda: self._board.awaited_work(self._rank))

    def _deadline_error(self, operation: Operation[Any], patience: Patience) -> DeadlineError:
        ranks = ", ".join(map(str, self._still_awaited(operation) or operation.awaited()))
        error = DeadlineError(
            self._rank, f"{operation} in step {self._step}", f"rank {ranks}", patience.limit_s
        )
        # Only the driver can read the state of the processes.
        return explain(error, self._board, lambda _rank: ProcessState.ASLEEP)


def _may_be_late(operation: Operation[Any]) -> bool:
    """Return whether a wait can be late. A message on an emulated slow link is not late."""
    return operation.due_s() == math.inf or clock.stands()


def _failed_unheard(operation: Operation[Any]) -> bool:
    if not isinstance(operation, Background) or operation.heard or operation.error is None:
        return False
    return not isinstance(operation.error, Cancelled)
