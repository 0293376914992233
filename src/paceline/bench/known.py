"""Known input numbers of each rank, so that results can be verified to the last bit.

Every rank has a table of small integers, repeated over its tensor. Any sum of them is exact in every dtype, including
bfloat16, and in any order. The length of the tables is prime, so that a chunk in a wrong position is detected. Each
call has different numbers, so that a result left by an earlier call is detected too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from paceline.schedules.collectives.steps import chunk_bounds

PERIOD = 997
_EXACT = 256  # bfloat16 represents all integers up to this one
_LARGEST = 8


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Content of a range of a tensor: the numbers of `table`, repeated from the first one."""

    where: slice
    table: Tensor


@dataclass(frozen=True, slots=True)
class Known:
    """The known numbers of all ranks in one call, for tensors of one length and dtype."""

    workers: int
    length: int
    dtype: torch.dtype
    call: int = 0
    """Number of this call. It is the offset at which the tables begin."""

    @property
    def ranks(self) -> range:
        return range(self.workers)

    def chunk(self, rank: int) -> slice:
        """Return the chunk of a rank, if a tensor is cut into one chunk per rank."""
        bounds = chunk_bounds(self.length, self.workers)
        return slice(bounds[rank], bounds[rank + 1])

    def of(self, rank: int, where: slice | None = None, *, taken_from: slice | None = None) -> Piece:
        """Return a rank's numbers in a range, or the numbers of the range `taken_from`, moved to this range."""
        where = where or slice(0, self.length)
        return self._piece(where, taken_from or where, _table(rank, self.workers))

    def sum(self, where: slice | None = None) -> Piece:
        """Return the sum of all ranks' numbers in a range."""
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
    """Write the numbers of a piece into its range of the tensor."""
    rows, rest = _rows_and_rest(tensor[piece.where])
    rows.copy_(piece.table.expand_as(rows))
    rest.copy_(piece.table[: len(rest)])


def find_wrong(tensor: Tensor, piece: Piece) -> tuple[int, float, float] | None:
    """Return the first element that differs from a piece: index, value and expected value. None if there is none."""
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
