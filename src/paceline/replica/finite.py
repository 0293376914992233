"""Whether every value of a gradient is a number: one sum for each bucket, and a closer look only if that fails."""

from __future__ import annotations

import cmath
from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["is_finite", "last_not_finite"]

# Sums of float16 leave its range long before its values do.
_SUMMED_AS = {torch.float16: torch.float32}


def is_finite(tensor: Tensor) -> bool:
    """Whether no value is NaN or infinite. Costs one pass over memory.

    A NaN or an infinity among the values never leaves a finite sum (inf - inf is NaN). A sum that is not finite proves
    nothing, for large values may overflow when they are added: then each value is looked at, which takes much longer.
    """
    total = tensor.sum(dtype=_SUMMED_AS.get(tensor.dtype)).item()
    return cmath.isfinite(total) or bool(torch.isfinite(tensor).all())


def last_not_finite(named: Iterable[tuple[str, Tensor]]) -> str | None:
    """The last name whose tensor has a value that is NaN or infinite. None: there is no such value.

    Backward goes from the last layer to the first and carries what is not finite along: the last is where it began.
    """
    return next((name for name, tensor in reversed(list(named)) if not is_finite(tensor)), None)
