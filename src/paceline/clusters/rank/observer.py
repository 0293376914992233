"""What a run sees of workers that each have parameters of their own: their mean, and how far they are from it.

Workers show their parameters in memory that costs the run no time and no bytes, for this is measuring, not training.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence

import torch
from torch import Tensor

from paceline.clusters.rank.row_board import RowBoard

__all__ = ["Observer"]


class Observer:
    """One worker's part in the observation. A row of the board: its parameters, and a 1 once it has shown them."""

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
        """A row of the parameter board has the size and dtype of this."""
        # In the processor's memory, whatever device the parameters are on: there all ranks can show theirs.
        device = "meta" if parameters.is_meta else "cpu"
        return torch.empty(parameters.numel() + 1, dtype=parameters.dtype, device=device)

    def show(self, parameters: Tensor) -> None:
        if not parameters.is_meta:
            row = self._parameter_board.row(self._rank)
            row[:-1].copy_(parameters)
            row[-1] = 1

    def meet(self) -> Awaitable[None]:
        """Until every worker has shown its parameters."""
        return self._parameter_board.barrier()

    def part(self) -> Awaitable[None]:
        """Until the first worker has looked at them."""
        return self._parameter_board.pause()

    def mean(self) -> Tensor:
        return self._shown().mean(dim=0)

    def distance(self) -> float:
        """The root of the mean squared distance of the workers from their mean."""
        shown = self._shown()
        if shown.is_meta:
            return math.nan
        squares = torch.linalg.vector_norm(shown - shown.mean(dim=0), dim=1).square()
        return float(squares.mean().sqrt())

    def _shown(self) -> Tensor:
        """The rows of those that have shown theirs and are still there."""
        shown = self._parameter_board.tensor
        rows, marks = shown[:, :-1], shown[:, -1]
        if rows.is_meta:
            return rows
        there = [rank for rank in self._workers if marks[rank] and not self._is_lost(rank)]
        return rows if len(there) == len(rows) else rows[there]
