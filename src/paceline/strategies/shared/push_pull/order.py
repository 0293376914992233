"""The decision that the first server sends to the others, encoded as a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Order:
    """The gradients of an update, and the workers that receive the parameters afterwards."""

    keys: list[tuple[int, int]]
    """Worker and step of each gradient in the update. Empty for no update: parameters are only sent."""
    recipients: list[int]
    version: int
    """Version of the parameters that are sent."""
    ends: bool
    """Whether these parameters are the run's last."""
    fetch: bool
    """Whether to send the shard to the first server afterwards."""

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
