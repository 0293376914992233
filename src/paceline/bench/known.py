"""Known numbers: what each rank puts in, so that what comes out can be checked to the last bit.

Every rank has a table of small whole numbers, repeated over its tensor. Any sum of them is exact in every dtype, in
any order, bfloat16 included. The tables' length is a prime, so that a chunk in a wrong place does not look right; and
each call has other numbers, so that what an earlier call left behind does not look right either.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from paceline.schedules.steps import chunk_bounds

__all__ = ["Known", "Piece", "fill", "find_wrong"]

PERIOD = 997
_EXACT = 256  # the last of the whole numbers that bfloat16 has without a gap
_LARGEST = 8


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """What a range of a tensor holds: `table`, repeated, from its first number on."""

    where: slice
    table: Tensor


@dataclass(frozen=True, slots=True)
class Known:
    """The known numbers of all ranks in one call, for tensors of one length and dtype."""

    workers: int
    length: int
    dtype: torch.dtype
    call: int = 0
    """The tables begin so many numbers later."""

    @property
    def ranks(self) -> range:
        return range(self.workers)

    def chunk(self, rank: int) -> slice:
        """The chunk that belongs to a rank, where a tensor is cut into one a rank."""
        bounds = chunk_bounds(self.length, self.workers)
        return slice(bounds[rank], bounds[rank + 1])

    def of(self, rank: int, where: slice | None = None, *, taken_from: slice | None = None) -> Piece:
        """A rank's numbers in a range: those of that range, or those of another that was put there."""
        where = where or slice(0, self.length)
        return self._piece(where, taken_from or where, _table(rank, self.workers))

    def sum(self, where: slice | None = None) -> Piece:
        """The sum of all ranks' numbers in a range."""
        where = where or slice(0, self.length)
        return self._piece(where, where, _sum(self.workers))

    def _piece(self, where: slice, source: slice, table: Tensor) -> Piece:
        first = (source.start + self.call) % PERIOD
        return Piece(where, torch.roll(table, -first).to(self.dtype))


@lru_cache(maxsize=512)
def _table(rank: int, workers: int) -> Tensor:
    above = max(2, min(_LARGEST, _EXACT // workers))
    return torch.from_numpy(np.random.default_rng(rank).integers(0, above, PERIOD))


@lru_cache(maxsize=8)
def _sum(workers: int) -> Tensor:
    return torch.stack([_table(rank, workers) for rank in range(workers)]).sum(0)


def fill(tensor: Tensor, piece: Piece) -> None:
    """Write what a piece says."""
    rows, rest = _rows_and_rest(tensor[piece.where])
    rows.copy_(piece.table.expand_as(rows))
    rest.copy_(piece.table[: len(rest)])


def find_wrong(tensor: Tensor, piece: Piece) -> tuple[int, float, float] | None:
    """The first element that is not what a piece says: its index, its value, and what it should be."""
    part = tensor[piece.where]
    rows, rest = _rows_and_rest(part)
    if torch.equal(rest, piece.table[: len(rest)]) and bool((rows == piece.table).all()):
        return None
    should_be = piece.table.repeat(len(rows) + 1)[: len(part)]
    index = int((part != should_be).nonzero()[0])
    return piece.where.start + index, part[index].item(), should_be[index].item()


def _rows_and_rest(part: Tensor) -> tuple[Tensor, Tensor]:
    whole = len(part) // PERIOD * PERIOD
    return part[:whole].view(-1, PERIOD), part[whole:]
