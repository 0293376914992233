"""Whether every value of a gradient is a number: one sum for each bucket, and a closer look only if that fails."""

from __future__ import annotations

import cmath
from collections.abc import Iterable

import torch
from torch import Tensor

from paceline.errors import RunError
from paceline.replica.layout import Layout

__all__ = ["check_updated", "is_finite", "last_not_finite", "not_finite_in"]

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


def not_finite_in(layout: Layout, flat: Tensor, run: range) -> str | None:
    """The same of some neighbouring parameters in a flat tensor. `run` has their numbers."""
    if is_finite(flat[layout.offsets[run.start] : layout.offsets[run.stop]]):
        return None
    views = layout.views(flat)
    return last_not_finite((layout.names[number], views[number]) for number in run)


def check_updated(layout: Layout, flat: Tensor) -> None:
    """Refuse parameters that are not finite.

    Every gradient was finite, but an update may overflow. The next loss tells of it; after the last, this does.
    """
    name = not_finite_in(layout, flat, range(len(layout.names)))
    if name is not None:
        remedy = "lower the learning rate, or clip the gradients (Task(clip_norm=…))"
        raise RunError(f"{name} is not finite after the last update; {remedy}")
