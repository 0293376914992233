"""Requests of a rank to a hub that may be on another host."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from torch import Tensor

from paceline.clusters.base.news import News, write_news
from paceline.clusters.hosts.hub_client import HubClient
from paceline.clusters.hosts.row_boards import HubRowBoards
from paceline.clusters.process.letters import write_record
from paceline.clusters.process.status_board import StatusBoard
from paceline.clusters.rank.row_board import RowBoard
from paceline.errors import PeerLost
from paceline.links.memory.shared import SharedMemory

if TYPE_CHECKING:
    from paceline.clusters.process.context import ProcessContext


class HubDriver:
    """Driver interface of a rank. The status board is a copy in this process, which the client updates."""

    def __init__(self, rank: int, workers: int, board: StatusBoard, client: HubClient) -> None:
        self.board = board
        self.client = client
        self._row_boards = HubRowBoards(rank, workers, board, client) if rank < workers else None
        self._made: list[SharedMemory] = []

    def end_after(self, step: int) -> None:
        self.client.ask("end_after", {"step": step})

    def announce_end(self, generation: int, word: int) -> None:
        self.client.ask("announce_end", {"generation": generation, "word": word})

    def announce(self, evaluation: int, metric: float) -> None:
        self.client.ask("announce", {"evaluation": evaluation, "metric": metric})

    def consult(self, record: dict[str, Any], state: dict[str, Tensor] | None) -> bool:
        return bool(self.client.ask("record", *write_record(record, state)).values["stop"])

    def count_update(self, first: int) -> int:
        return int(self.client.ask("count", {"first": first}).values["count"])

    def note_holds(self, words: str) -> None:
        self.client.tell("holds", {"words": words})

    def tell_news(self, news: News) -> None:
        self.client.tell("news", blobs=[write_news(news)])

    def give_up_on(self, rank: int) -> None:
        self.client.tell("lost", {"rank": rank})

    def number_of(self, group: tuple[int, ...]) -> int:
        return int(self.client.ask("group", {"members": list(group)}).values["number"])

    def memory(self, name: str, nbytes: int) -> SharedMemory:
        found = self.client.ask("memory", {"name": name}).values
        path = found["path"]
        if not path:
            memory = SharedMemory.create(name, nbytes)
            self._made.append(memory)  # the other ranks open it through this process's descriptor
            self.client.tell("made", {"name": name, "path": f"/proc/{os.getpid()}/fd/{memory.fd}"})
            return memory
        try:
            memory = SharedMemory.attach(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except FileNotFoundError:
            reason = "it ended before the other ranks of its host had opened its shared memory"
            raise PeerLost(found["maker"], reason) from None
        memory.close_fd()
        return memory

    def row_board(
        self, context: ProcessContext, name: str, like: Tensor, *, forgiving: bool = False
    ) -> RowBoard:
        assert self._row_boards is not None, "a pure server has no row"
        found = self._row_boards.find(name)
        found.open(context, like, forgiving=forgiving)
        return found
