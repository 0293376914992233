"""Row boards of workers on several hosts. Each worker stores its own row, and the hub collects the rows on request.

Collecting rows is measuring, not training: the bytes do not count for the run, but they use the same network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paceline.clusters.hosts.hub_client import HubClient
from paceline.clusters.process.channel import Letter
from paceline.clusters.process.status_board import StatusBoard
from paceline.clusters.process.window import LINE_WORDS, BarrierOperation
from paceline.trace import Kind
from paceline.trace.spans import place_number

if TYPE_CHECKING:
    from paceline.clusters.process.context import ProcessContext


class HubRowBoards:
    """Boards of one worker, by name.

    They receive messages from the start: other ranks may arrive at a barrier, or request rows, before this rank does.
    """

    def __init__(self, rank: int, workers: int, board: StatusBoard, client: HubClient) -> None:
        self._rank = rank
        self._workers = workers
        self._board = board
        self._client = client
        self._boards: dict[str, HubRowBoard] = {}
        client.takers["arrive"] = self._note_arrival
        client.takers["row"] = self._give_row

    def find(self, name: str) -> HubRowBoard:
        """Return the board of this name.

        Called by the program and by the client's thread; both get the same board.
        """
        found = self._boards.get(name)
        return found or self._boards.setdefault(
            name, HubRowBoard(name, self._rank, self._workers, self._client)
        )

    def _note_arrival(self, letter: Letter) -> None:
        self.find(letter.values["board"]).note_arrival(letter.values["rank"], letter.values["visit"])
        self._board.bells.ring(self._rank)

    def _give_row(self, letter: Letter) -> tuple[dict[str, Any], list[Any]]:
        return {}, [self.find(letter.values["board"]).own_bytes()]


class HubRowBoard:
    """One board, on one worker."""

    def __init__(self, name: str, rank: int, workers: int, client: HubClient) -> None:
        self._name = name
        self.place = place_number(name)
        self._client = client
        self._like: Tensor | None = None
        self._own: Tensor | None = None
        self._context: ProcessContext | None = None
        self.group = tuple(range(workers))
        self.position = rank
        self.visits = 0
        self.arrivals = memoryview(bytearray(8 * LINE_WORDS * workers)).cast("q")
        self.forgiving = False

    def open(self, context: ProcessContext, like: Tensor, *, forgiving: bool) -> None:
        """Set the size and dtype of the rows. If `forgiving`, barriers ignore lost ranks."""
        self._context, self._like, self.forgiving = context, like, forgiving

    @property
    def tensor(self) -> Tensor:
        """All rows, as they are now. Rows of lost ranks, and rows that were never written, are zeros."""
        assert self._like is not None
        letter = self._client.ask("rows", {"board": self._name})
        rows = torch.zeros(len(self.group), self._like.numel(), dtype=self._like.dtype)
        for rank, blob in zip(letter.values["ranks"], letter.blobs, strict=True):
            if blob:
                rows[rank] = torch.frombuffer(blob, dtype=self._like.dtype)
        return rows

    def row(self, number: int) -> Tensor:
        if self._own is None:
            assert self._like is not None
            self._own = torch.zeros_like(self._like)
        return self._own

    def own_bytes(self) -> Any:
        """Return the bytes of this worker's row. Empty if it was never written."""
        return b"" if self._own is None else self._own.view(torch.uint8).numpy()

    def barrier(self) -> BarrierOperation:
        return self._arrive(Kind.WAIT)

    def pause(self) -> BarrierOperation:
        return self._arrive(Kind.EVALUATE)

    def note_arrival(self, rank: int, visit: int) -> None:
        self.arrivals[rank * LINE_WORDS] = visit

    def _arrive(self, kind: Kind) -> BarrierOperation:
        assert self._context is not None
        self._client.tell("arrive", {"board": self._name, "visit": self.visits + 1})
        return BarrierOperation(self._context, self, kind)
