"""What a real rank asks of its driver, because it cannot know or make it by itself."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from paceline.clusters.news import News
from paceline.clusters.process.channel import Channel
from paceline.clusters.process.journal import Journal
from paceline.clusters.process.letters import write_record
from paceline.clusters.process.status_board import StatusBoard
from paceline.clusters.process.window import LocalWindow
from paceline.clusters.rank.row_board import RowBoard
from paceline.links.memory import SharedMemory

if TYPE_CHECKING:
    from paceline.clusters.process.context import ProcessContext

__all__ = ["Driver", "LocalDriver"]


class Driver(Protocol):
    """What the context of a real rank asks of its driver."""

    @property
    def board(self) -> StatusBoard:
        """What is known of the run and of the other ranks."""
        ...

    def end_after(self, step: int) -> None:
        """Make step number `step` the run's last, for all ranks, before this one goes on."""
        ...

    def say(self, leg: int, word: int) -> None:
        """Put what the reporter says of leg number `leg` on the board, for all ranks, before this one goes on."""
        ...

    def announce(self, metric: float) -> None:
        """Put a metric on the board, for all ranks, before this one goes on."""
        ...

    def consult(self, record: dict[str, Any], state: dict[str, Tensor] | None) -> bool:
        """Show a record to the callbacks, and wait for them; whether the run shall end."""
        ...

    def count_update(self, first: int) -> int:
        """Count an update of the leg that began with step `first`; how many there are now.

        No two ranks are told the same number.
        """
        ...

    def note_holds(self, words: str) -> None:
        """Tell the driver what this rank holds of the model, for errors that name it."""
        ...

    def tell_news(self, news: News) -> None:
        """Let the driver have what this rank has written down: what it was told counts even if the rank is lost."""
        ...

    def give_up_on(self, rank: int) -> None:
        """Ask the driver to end a rank, if the run may go on without it."""
        ...

    def number_of(self, group: tuple[int, ...]) -> int:
        """The number of a group of ranks, from 1 on: the same to every rank that asks."""
        ...

    def memory(self, name: str, nbytes: int) -> SharedMemory:
        """Memory that all ranks of this host find under this name. The first to ask has it made, of zeros."""
        ...

    def row_board(
        self, context: ProcessContext, name: str, like: Tensor, *, forgiving: bool = False
    ) -> RowBoard:
        """The board of this name, where workers show rows of the size and dtype of `like`.

        `forgiving`: its barriers do without ranks that are lost.
        """
        ...


class LocalDriver:
    """A driver on this host: it answers most of this through memory that it shares with the ranks."""

    def __init__(self, board: StatusBoard, channel: Channel) -> None:
        self.board = board
        self._channel = channel
        self._journal: Journal | None = None

    def end_after(self, step: int) -> None:
        self.board.last_step = min(self.board.last_step, step + 1)

    def say(self, leg: int, word: int) -> None:
        self.board.say(leg, word)

    def announce(self, metric: float) -> None:
        self.board.metric = metric

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
        # Not `net.window`: the run looks at this one even where a strategy's ranks share no memory.
        workers = context.groups.find(context.workers)
        window = LocalWindow.open(context, name, workers, rows=workers.size, like=like)
        window.forgiving = forgiving
        return window
