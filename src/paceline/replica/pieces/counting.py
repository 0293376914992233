"""Operations of a layer, counted without computing it.

A floating-point operation of a matrix product is one operation. Moving a value is worth as many as a core does
meanwhile: an activation or a normalisation multiplies little, but takes its time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

__all__ = ["MOVED", "counted", "nbytes_of"]

MOVED = 20.0
"""Operations that a value's way to memory is worth: about what a core multiplies in that time."""


def counted(work: Callable[[], Any]) -> tuple[Any, float]:
    """What a piece of work gives, and its operations."""
    with FlopCounterMode(display=False) as counter:
        made = work()
    moved = sum(leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, Tensor))
    return made, float(counter.get_total_flops()) + MOVED * moved


def nbytes_of(value: Any) -> int:
    return sum(leaf.numel() * leaf.itemsize for leaf in tree_leaves(value) if isinstance(leaf, Tensor))
