"""What the first server tells the others, as a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Order"]


@dataclass(frozen=True, slots=True)
class Order:
    """Which gradients make up an update, and who gets the parameters then."""

    keys: list[tuple[int, int]]
    """The gradients of an update: worker and step of each. Empty: no update, the parameters are only handed out."""
    recipients: list[int]
    version: int
    """Of the parameters that are handed out."""
    ends: bool
    """Whether these are the run's last."""
    fetch: bool
    """Whether the first server wants the others' shards then."""

    def pack(self) -> Tensor:
        import torch

        flat = [number for key in self.keys for number in key]
        flags = 2 * self.ends + self.fetch
        return torch.tensor([self.version, flags, len(self.keys), *flat, *self.recipients])

    @classmethod
    def unpack(cls, tensor: Tensor) -> Order:
        version, flags, count, *rest = tensor.tolist()
        flat, recipients = rest[: 2 * count], rest[2 * count :]
        keys = list(zip(flat[::2], flat[1::2], strict=True))
        return cls(keys, recipients, version, bool(flags & 2), bool(flags & 1))
