"""Updates with a loss scale: which ones a rank skips, and when a run fails."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from paceline.errors import GradientNotFiniteError
from paceline.model.finite import last_not_finite

if TYPE_CHECKING:
    from paceline.clusters.rank.rank import Rank
    from paceline.model.replica import Replica


def skips_update(rank: Rank, replica: Replica, shard: slice | None, norm: float | None) -> bool:
    """Return whether to skip an update, because a gradient is not finite. Call it once for each update.

    `norm` is that of the whole gradient. None if this rank has the whole gradient.
    """
    scale = replica.loss_scale
    if scale is None:
        return False
    gradient = replica.gradient
    if norm is None:
        norm = float(torch.linalg.vector_norm(gradient if shard is None else gradient[shard]))
    overflowed = not math.isfinite(norm)
    if overflowed:
        named = ((name, gradient[place]) for name, place in replica.holding.places.items())
        scale.cause = last_not_finite(named) or scale.cause
    scale.note_update(overflowed=overflowed)
    rank.outcome.skipped = scale.skipped
    check_loss_scale(rank, replica)
    return overflowed


def check_loss_scale(rank: Rank, replica: Replica) -> None:
    """Raise if gradients are not finite even without scaling."""
    scale = replica.loss_scale
    if scale is not None and scale.is_too_small:
        raise GradientNotFiniteError(rank.rank, rank.step, scale.cause or "a layer", scale.value)
