"""Requests of a real rank to its driver."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from paceline.clusters.base.members import Arrival, Membership
from paceline.clusters.base.news import News
from paceline.clusters.process.channel import Channel
from paceline.clusters.process.journal import Journal
from paceline.clusters.process.letters import write_record
from paceline.clusters.process.status_board import StatusBoard
from paceline.clusters.process.window import LocalWindow
from paceline.clusters.rank.row_board import RowBoard
from paceline.links.memory.shared import SharedMemory
from paceline.links.tcp import PeerAddress

if TYPE_CHECKING:
    from paceline.clusters.process.context import ProcessContext


class Driver(Protocol):
    """Interface between the context of a real rank and its driver."""

    @property
    def board(self) -> StatusBoard:
        """State of the run and of all ranks."""
        ...

    def end_after(self, step: int) -> None:
        """Make step number `step` the run's last one, for all ranks, before this rank continues."""
        ...

    def announce_end(self, generation: int, word: int) -> None:
        """Write the announced end of a generation to the board, for all ranks, before this rank continues."""
        ...

    def announce(self, evaluation: int, metric: float) -> None:
        """Write the metric of an evaluation to the board, for all ranks, before this rank continues."""
        ...

    def consult(self, record: dict[str, Any], state: dict[str, Tensor] | None) -> bool:
        """Send a record to the callbacks and wait for them. Return whether the run must end."""
        ...

    def count_update(self, first: int) -> int:
        """Count an update of the generation that began with step `first`. Return the new total.

        No two ranks receive the same number.
        """
        ...

    def note_holds(self, words: str) -> None:
        """Send the driver a description of what this rank holds, for error messages."""
        ...

    def tell_news(self, news: News) -> None:
        """Send new records to the driver. They are used even if the rank is lost."""
        ...

    def give_up_on(self, rank: int) -> None:
        """Ask the driver to end a rank, if the run may continue without it."""
        ...

    def number_of(self, group: tuple[int, ...]) -> int:
        """Return the number of a group of ranks, at least 1. It is the same for every rank."""
        ...

    def memory(self, name: str, nbytes: int) -> SharedMemory:
        """Return memory that all ranks of this host find by name. The first request creates it, filled with zeros."""
        ...

    def row_board(
        self, context: ProcessContext, name: str, like: Tensor, *, forgiving: bool = False
    ) -> RowBoard:
        """Return the board of this name. Workers write rows of the size and dtype of `like` to it.

        If `forgiving`, its barriers ignore lost ranks.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class NewGeneration:
    """A generation of members, and what its members need to connect to each other."""

    membership: Membership
    rings: SharedMemory
    addresses: Sequence[PeerAddress | None]
    """Address of each rank over TCP. None for a rank that is not a member, and without TCP."""


class LocalDriver:
    """Driver on this host. Most requests use memory shared with the ranks."""

    def __init__(self, board: StatusBoard, channel: Channel) -> None:
        self.board = board
        self._channel = channel
        self._journal: Journal | None = None

    def end_after(self, step: int) -> None:
        self.board.last_step = min(self.board.last_step, step + 1)

    def announce_end(self, generation: int, word: int) -> None:
        self.board.announce_end(generation, word)

    def announce(self, evaluation: int, metric: float) -> None:
        self.board.set_metric(evaluation, metric)

    def consult(self, record: dict[str, Any], state: dict[str, Tensor] | None) -> bool:
        self._channel.send("record", *write_record(record, state))
        return bool(self._channel.receive().values["stop"])

    def count_update(self, first: int) -> int:
        return self.board.count_update(first)

    def note_holds(self, words: str) -> None:
        self._channel.send("holds", {"words": words})

    def tell_news(self, news: News) -> None:
        if self._journal is None:
            self._channel.send("journal")
            self._journal = Journal(self._channel.receive().fds[0])
        self._journal.write(news)

    def give_up_on(self, rank: int) -> None:
        self._channel.send("lost", {"rank": rank})

    def pause(self, seconds: float) -> None:
        """Ask the driver to stop this process for some seconds."""
        self._channel.send("pause", {"seconds": seconds})
        self._channel.receive()

    def meet(self, arrival: Arrival) -> NewGeneration | None:
        """Wait for the other members: see `ClusterServices.meet_members`."""
        self._channel.send("meet", arrival.to_values())
        letter = self._channel.receive()
        if letter.word == "end":
            return None
        rings = SharedMemory.attach(letter.fds[0])
        os.close(letter.fds[0])
        addresses = letter.values.pop("addresses")
        return NewGeneration(
            membership=Membership.from_values(letter.values),
            rings=rings,
            addresses=[PeerAddress.from_values(each) if each else None for each in addresses],
        )

    def report_late(self) -> bool:
        """Report that this rank has reached its deadline. Return whether the driver has ended a stopped rank."""
        self._channel.send("late")
        return bool(self._channel.receive().values["ended"])

    def number_of(self, group: tuple[int, ...]) -> int:
        self._channel.send("group", {"members": list(group)})
        return int(self._channel.receive().values["number"])

    def memory(self, name: str, nbytes: int) -> SharedMemory:
        self._channel.send("window", {"name": name, "nbytes": nbytes})
        letter = self._channel.receive()
        memory = SharedMemory.attach(letter.fds[0])
        os.close(letter.fds[0])
        return memory

    def row_board(
        self, context: ProcessContext, name: str, like: Tensor, *, forgiving: bool = False
    ) -> RowBoard:
        # Not `net.window`: the run uses this one even if the strategy's ranks share no memory.
        workers = context.groups.find(context.workers)
        window = LocalWindow.open(context, name, workers, rows=workers.size, like=like)
        window.forgiving = forgiving
        return window
