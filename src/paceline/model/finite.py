"""Check for NaN and infinity in gradients: one sum per bucket. If the sum is not finite, every value is checked."""

from __future__ import annotations

import cmath
from collections.abc import Iterable

import torch
from torch import Tensor

from paceline.errors import RunError
from paceline.model.layout import Layout

# A sum of float16 values may overflow although all values are finite.
_SUMMED_AS = {torch.float16: torch.float32}


def is_finite(tensor: Tensor) -> bool:
    """Return whether no value is NaN or infinite. Costs one pass over memory.

    A NaN or an infinity among the values always makes the sum NaN or infinite (inf - inf is NaN). The converse does not
    hold: large values may overflow when they are added. So if the sum is not finite, every value is checked, which
    takes much longer.
    """
    total = tensor.sum(dtype=_SUMMED_AS.get(tensor.dtype)).item()
    return cmath.isfinite(total) or bool(torch.isfinite(tensor).all())


def last_not_finite(named: Iterable[tuple[str, Tensor]]) -> str | None:
    """Return the last name with a tensor that has a NaN or infinite value. None if all values are finite.

    Backward propagates such values from the last layer to the first, so the last name is the cause.
    """
    return next((name for name, tensor in reversed(list(named)) if not is_finite(tensor)), None)


def not_finite_in(layout: Layout, flat: Tensor, run: range) -> str | None:
    """Return the last of the parameters in `run` with a NaN or infinite value. None if all values are finite."""
    if is_finite(flat[layout.offsets[run.start] : layout.offsets[run.stop]]):
        return None
    views = layout.views(flat)
    return last_not_finite((layout.names[number], views[number]) for number in run)


def check_updated(layout: Layout, flat: Tensor) -> None:
    """Raise RunError if a parameter is not finite.

    An update may overflow although every gradient was finite. The next loss would detect this. There is no next loss
    after the last update, so check here.
    """
    name = not_finite_in(layout, flat, range(len(layout.names)))
    if name is not None:
        remedy = "lower the learning rate, or clip the gradients (Task(clip_norm=…))"
        raise RunError(f"{name} is not finite after the last update; {remedy}")
