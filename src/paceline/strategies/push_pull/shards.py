"""The servers' shards of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["cut"]


def cut(tensor: Tensor, shards: Sequence[slice]) -> list[Tensor]:
    """A view of each shard. A single shard is the tensor itself, which worlds recognise by identity."""
    return [tensor] if len(shards) == 1 else [tensor[shard] for shard in shards]
