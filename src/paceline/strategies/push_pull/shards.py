"""The servers' shards of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["cut"]


def cut(tensor: Tensor, shards: Sequence[slice]) -> list[Tensor]:
    """A view of each shard. Where one shard is all there is it is the tensor itself, which every rank knows again."""
    return [tensor] if len(shards) == 1 else [tensor[shard] for shard in shards]
