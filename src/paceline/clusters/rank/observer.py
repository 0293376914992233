"""Observation of workers that have parameters of their own: their mean, and their distance from it.

Workers write their parameters to separate memory. This is measuring, not training: it costs the run no time and no
bytes.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence

import torch
from torch import Tensor

from paceline.clusters.rank.row_board import RowBoard


class Observer:
    """Observation, on one worker. Its row of the board has its parameters, and a 1 once they are written."""

    def __init__(
        self,
        parameter_board: RowBoard,
        rank: int,
        workers: Sequence[int],
        is_lost: Callable[[int], bool],
    ) -> None:
        self._parameter_board = parameter_board
        self._rank = rank
        self._workers = workers
        self._is_lost = is_lost

    @staticmethod
    def row(parameters: Tensor) -> Tensor:
        """Return an empty row of the parameter board, with the right size and dtype."""
        # In CPU memory for parameters on any device, because all ranks can write there.
        device = "meta" if parameters.is_meta else "cpu"
        return torch.empty(parameters.numel() + 1, dtype=parameters.dtype, device=device)

    def show(self, parameters: Tensor) -> None:
        if not parameters.is_meta:
            row = self._parameter_board.row(self._rank)
            row[:-1].copy_(parameters)
            row[-1] = 1

    def meet(self) -> Awaitable[None]:
        """Wait until every worker has written its parameters."""
        return self._parameter_board.barrier()

    def part(self) -> Awaitable[None]:
        """Wait until the first worker has read them."""
        return self._parameter_board.pause()

    def mean(self) -> Tensor:
        return self._shown().mean(dim=0)

    def distance(self) -> float:
        """Return the root mean squared distance of the workers from their mean."""
        shown = self._shown()
        if shown.is_meta:
            return math.nan
        squares = torch.linalg.vector_norm(shown - shown.mean(dim=0), dim=1).square()
        return float(squares.mean().sqrt())

    def _shown(self) -> Tensor:
        """Return the rows of all workers that have written theirs and are not lost."""
        shown = self._parameter_board.tensor
        rows, marks = shown[:, :-1], shown[:, -1]
        if rows.is_meta:
            return rows
        there = [rank for rank in self._workers if marks[rank] and not self._is_lost(rank)]
        return rows if len(there) == len(rows) else rows[there]
