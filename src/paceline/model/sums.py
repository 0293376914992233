"""Elementwise combination of several tensors into one, in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

BLOCK = 2**15
"""Elements combined at a time. Partial results fit in the L1 cache."""

_FUNCTIONS: Mapping[str, Callable[..., Tensor]] = {
    "sum": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
}


def combine_into(own: Tensor, other: Tensor, combine: str) -> None:
    """Combine `other` into `own`: sum, maximum or minimum. "copy" replaces `own` by `other`."""
    if combine == "copy":
        own.copy_(other)
    else:
        _FUNCTIONS[combine](own, other, out=own)


def combine_rows(rows: Sequence[Tensor], into: Tensor, block: Tensor, combine: str = "sum") -> None:
    """Combine the rows from left to right, block by block. `into` may be the last row."""
    if len(rows) == 1:
        if into.data_ptr() != rows[0].data_ptr():
            into.copy_(rows[0])
        return
    function = _FUNCTIONS[combine]
    if len(rows) == 2:  # nothing to combine
        function(*rows, out=into)
        return
    for start in range(0, into.numel(), len(block)):
        part = slice(start, min(start + len(block), into.numel()))
        partial = rows[0][part]
        scratch = block[: part.stop - part.start]
        for row in rows[1:-1]:
            partial = function(partial, row[part], out=scratch)
        function(partial, rows[-1][part], out=into[part])
