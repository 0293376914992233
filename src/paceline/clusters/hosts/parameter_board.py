"""The rows that workers of several hosts show to the run: each keeps its own, and the hub fetches them when asked.

It is measuring, not training: its bytes are not counted as the run's. But they pass the same network.
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

if TYPE_CHECKING:
    from paceline.clusters.process.context import ProcessContext

__all__ = ["HubParameterBoard"]


class HubParameterBoard:
    """One worker's part. Its barriers do without ranks that are lost.

    It is there from the start, because others may come to a barrier, or ask for rows, before this rank does.
    """

    forgiving = True

    def __init__(self, rank: int, workers: int, board: StatusBoard, client: HubClient) -> None:
        self._rank = rank
        self._client = client
        self._board = board
        self._own: Tensor | None = None
        self._context: ProcessContext | None = None
        self.group = tuple(range(workers))
        self.position = rank
        self.visits = 0
        self.arrivals = memoryview(bytearray(8 * LINE_WORDS * workers)).cast("q")
        client.takers["arrive"] = self._note_arrival
        client.takers["row"] = self._give_row

    def open(self, context: ProcessContext, like: Tensor) -> None:
        """Have a row of this size and dtype."""
        self._context = context
        self._own = torch.zeros_like(like)

    @property
    def tensor(self) -> Tensor:
        """All rows, as they are now; those of ranks that are lost, or have shown none, are zeros."""
        assert self._own is not None
        letter = self._client.ask("rows")
        rows = torch.zeros(len(self.group), self._own.numel(), dtype=self._own.dtype)
        for rank, blob in zip(letter.values["ranks"], letter.blobs, strict=True):
            if blob:
                rows[rank] = torch.frombuffer(blob, dtype=self._own.dtype)
        return rows

    def row(self, number: int) -> Tensor:
        assert self._own is not None
        return self._own

    def barrier(self) -> BarrierOperation:
        return self._arrive(Kind.WAIT)

    def pause(self) -> BarrierOperation:
        return self._arrive(Kind.EVALUATE)

    def _arrive(self, kind: Kind) -> BarrierOperation:
        assert self._context is not None
        self._client.tell("arrive", {"visit": self.visits + 1})
        return BarrierOperation(self._context, self, kind)

    def _note_arrival(self, letter: Letter) -> None:
        self.arrivals[letter.values["rank"] * LINE_WORDS] = letter.values["visit"]
        self._board.bells.ring(self._rank)

    def _give_row(self, letter: Letter) -> tuple[dict[str, Any], list[Any]]:
        return {}, [b"" if self._own is None else self._own.view(torch.uint8).numpy()]
