"""Sums of several tensors in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["BLOCK", "sum_rows"]

BLOCK = 2**15
"""Elements that are summed at a time: the partial sums stay in the first-level cache."""


def sum_rows(rows: Sequence[Tensor], into: Tensor, block: Tensor) -> None:
    """The sum of rows, from the left, block by block. `into` may be the last row itself."""
    if len(rows) == 1:
        if into.data_ptr() != rows[0].data_ptr():
            into.copy_(rows[0])
        return
    for start in range(0, into.numel(), len(block)):
        part = slice(start, min(start + len(block), into.numel()))
        partial = rows[0][part]
        scratch = block[: part.stop - part.start]
        for row in rows[1:-1]:
            partial = torch.add(partial, row[part], out=scratch)
        torch.add(partial, rows[-1][part], out=into[part])
